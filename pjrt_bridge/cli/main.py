"""The command `pjrt-bridge`: its commands, and the border where errors become one message."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pjrt_bridge.cli import (
    bench,
    cache,
    calibrate,
    compile,
    conformance,
    explain,
    plan,
    plugins,
    run,
)
from pjrt_bridge.cli.console import CodeFailed, fail
from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.versions import version

app = typer.Typer(
    name="pjrt-bridge",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command()(plugins.plugins)
app.command()(plugins.inspect)
app.command()(run.run)
app.command()(compile.compile)
app.command()(plan.plan)
app.command()(explain.explain)
app.command()(bench.bench)
app.command()(calibrate.calibrate)
app.command()(cache.cache)
app.command()(conformance.conformance)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pjrt-bridge {version('pjrt-bridge') or 'of a folder'}")
        raise typer.Exit


@app.callback()
def _main(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Run programs on any PJRT plugin.

    **plugins** lists the plugins that were found, **inspect** shows one plugin, **run** runs a
    model or a StableHLO program, **compile** compiles one, also for devices that are not present,
    **plan** tells on which meshes of such devices a PyTorch model fits, **explain** reports which
    operators of a function a plugin runs and why not the others, **bench** measures a PyTorch
    function beside eager and Inductor, **calibrate** measures which operators PyTorch computes
    faster, **cache** shows the compiled programs on disk, **conformance** checks a plugin.

    The variable PJRT_BRIDGE_PLUGIN chooses the plugin: a name, a library's path or name:path.
    """


def main() -> None:
    """Run the command line of this process and exit.

    Exit status: 0 done, 1 an error (one message on standard error), 2 wrong usage.
    """
    # Taken out here so that it may stand behind a command's name as well.
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(args=arguments, prog_name="pjrt-bridge")
    except Exception as error:
        if len(arguments) < len(sys.argv) - 1:
            raise
        fail(_message(error))
        sys.exit(1)


def _message(error: Exception) -> str:
    if isinstance(error, PjrtBridgeError):
        return str(error)
    if isinstance(error, CodeFailed):
        return f"{error}\n--debug shows where"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return f"internal error, {type(error).__name__}: {error}; --debug shows where"
