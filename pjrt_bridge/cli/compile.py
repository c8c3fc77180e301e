"""`pjrt-bridge compile`: a program for devices that need not be there, its cost and its memory."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from pjrt_bridge import bounded_files, registry
from pjrt_bridge.cli.accounts import Accountant, rows, table, target_rows
from pjrt_bridge.cli.console import facts, out, parse_options, print_json
from pjrt_bridge.cli.opening import (
    FUNCTION_FLAGS,
    FUNCTION_HELP,
    TRUSTED_HELP,
    Choice,
    known_sizes,
    open_model,
)
from pjrt_bridge.cli.plugins import AsJson
from pjrt_bridge.errors import OptionError
from pjrt_bridge.report.wording import byte_size

if TYPE_CHECKING:
    from pjrt_bridge.exported import ExportedModel
    from pjrt_bridge.runtime import Client, Topology
    from pjrt_bridge.stablehlo import Program


def compile(
    model: Annotated[
        Path,
        typer.Argument(
            help="A saved model, a bundle of PyTorch/XLA, a SavedModel of TensorFlow, StableHLO "
            "(text, bytecode or a portable artifact), or what jax.export wrote.",
            metavar="DIR|FILE",
        ),
    ],
    plugin: Annotated[
        str | None,
        typer.Option(
            "--plugin",
            "-p",
            help="A plugin's name, a library, or name:library; by default the one that knows the "
            "topology.",
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology",
            "-t",
            help="The devices to compile for, such as v5e:2x2, h100 or h100:8; by default those "
            "of this machine.",
        ),
    ] = None,
    target_config: Annotated[
        Path | None,
        typer.Option(
            "--target-config", help="A GpuTargetConfigProto as text, for a GPU without a name."
        ),
    ] = None,
    function: Annotated[str | None, typer.Option(*FUNCTION_FLAGS, help=FUNCTION_HELP)] = None,
    platform: Annotated[
        str | None,
        typer.Option(
            "--platform",
            help="For a jax.export file with several platforms, the one to compile: cpu, cuda, "
            "tpu; by default the target's.",
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="NAME=N",
            help="A symbolic size of a jax.export file, a size that selects a program of a saved "
            "model, or an open size of a SavedModel's signature as INPUT.DIMENSION: x.0=8.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="A create option of the topology. Repeatable."
        ),
    ] = None,
    trusted: Annotated[bool, typer.Option("--trusted", help=TRUSTED_HELP)] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the compiled program, or the model in parts, there."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile a model or a program ahead of time, and print its cost and the memory it needs.

    The devices need not be present. The output can be loaded on a machine with the devices and the
    same version of the plugin. For one program it is a file for `Client.deserialize`; for a model
    that was exported in parts (`split=True`) it is a folder for `pjrt-bridge run --trusted` and
    `ExportedModel.load`.
    """
    options = parse_options(option or ())
    if target_config is not None:
        options["target_config"] = _text(target_config)

    @cache
    def target() -> Client | Topology:
        if topology is None and not options:
            return registry.client(plugin)
        return registry.topology(topology or "", plugin, **options)

    choice = Choice(
        function,
        platform,
        size or (),
        default_platform=lambda: target().platform_name,
        trusted=trusted,
    )
    opened = open_model(model, choice)
    if _in_parts(opened):
        _compile_parts(opened, target(), output, as_json=as_json)
    else:
        _compile_program(_program(model, opened), target(), output, as_json=as_json)


def _in_parts(model: ExportedModel) -> bool:
    from pjrt_bridge.exported import SplitProgram

    return any(isinstance(one.program, SplitProgram) for one in model.specializations)


def _compile_program(
    program: Program, target: Client | Topology, output: Path | None, *, as_json: bool
) -> None:
    """Compile one program; what is written is its executable."""
    accountant = Accountant(target, 1)
    compiled = accountant.compile(program)
    (account,) = accountant.accounts
    if output is not None:
        output.write_bytes(compiled.serialize())
    if as_json:
        print_json({**account, "output": output and str(output)})
        return
    console = out()
    console.print(Text(compiled.name, "bold"))
    console.print(facts(rows(account)))
    if output is not None:
        console.print(f"wrote {output} ({byte_size(output.stat().st_size)})", markup=False)


def _compile_parts(
    model: ExportedModel, target: Client | Topology, output: Path | None, *, as_json: bool
) -> None:
    """Compile what a device runs of a model in parts; what is written is the model with that."""
    from pjrt_bridge.exported.model import check_room

    if output is not None:
        # Before minutes of compiling, and not after.
        check_room(output)
    accountant = Accountant(target, len(model.device_programs))
    compiled = model.compile_for(accountant)
    accounts = accountant.accounts
    if output is not None:
        compiled.save(output)
    seconds = sum(account["seconds"] for account in accounts)
    on_host = sum(len(one.host_parts) for one in model.specializations)
    if as_json:
        data = {"name": model.name, "seconds": seconds, "programs": accounts, "host_parts": on_host}
        print_json({**data, "output": output and str(output)})
        return
    console = out()
    console.print(Text(model.name, "bold"))
    about = target_rows(accounts[0], seconds) if accounts else {}
    parts = f"{len(accounts)} for the device, {on_host} on the host"
    console.print(facts({**about, "parts": parts}))
    if accounts:
        console.print(table(accounts))
    if output is not None:
        console.print(
            f"wrote {output}, for `pjrt-bridge run --trusted` and ExportedModel.load", markup=False
        )


def _program(path: Path, model: ExportedModel) -> Program:
    """The one program of a model.

    Raises:
        OptionError: there are several.
    """
    if len(model.specializations) > 1:
        raise OptionError(
            f"--size: {path} has {len(model.specializations)} programs; choose one, their sizes "
            f"are: {known_sizes(model)}"
        )
    return model.program


def _text(path: Path) -> str:
    try:
        return bounded_files.read(path, bounded_files.CONFIGURATION).decode()
    except (OSError, ValueError) as error:
        raise OptionError(f"--target-config {path}: {bounded_files.reason(error)}") from error
