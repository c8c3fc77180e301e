"""`pjrt-bridge explain`: what runs on the plugin, what stays on the host, and why."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pjrt_bridge import named_functions
from pjrt_bridge.cli.console import calling, out
from pjrt_bridge.cli.frameworks import need_tensorflow, need_torch
from pjrt_bridge.cli.plugins import AsJson, PluginName
from pjrt_bridge.errors import HostFallbackWarning, OptionError
from pjrt_bridge.report.data import FrameworkName
from pjrt_bridge.report.report import Report
from pjrt_bridge.runtime.compile.progress import working


def explain(
    target: Annotated[
        str,
        typer.Argument(
            help="A function or module, as package.module:name or path/to/file.py:name.",
            metavar="MODULE:CALLABLE",
        ),
    ],
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="INPUT",
            help="An argument, in order: f32[8,64], i64[4,128]<1000 (random numbers), FILE.npy; "
            "str[ant,bee] for TensorFlow.",
        ),
    ] = None,
    plugin: PluginName = None,
    host_op: Annotated[
        list[str] | None,
        typer.Option("--host-op", metavar="OPERATOR", help="Keep an operator on the host."),
    ] = None,
    min_segment: Annotated[
        int | None,
        typer.Option("--min-segment", min=1, help="Run smaller device parts on the host."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the report as a page.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
    framework: Annotated[
        FrameworkName | None, typer.Option("--framework", help="The function's framework.")
    ] = None,
) -> None:
    """Compile a function of PyTorch or TensorFlow, call it, and report what ran where and why.

    A function without parameters is called without inputs, and makes its own. A module class is
    instantiated without arguments. A function that is compiled already keeps its options. A plain
    function is taken as PyTorch's, unless --framework is given.
    """
    with calling(target):
        function = named_functions.load(target)
    _check_count(target, function, input or ())
    options = {
        name: value
        for name, value in (
            ("plugin", plugin),
            ("host_ops", host_op),
            ("min_segment", min_segment),
        )
        if value is not None
    }
    ask = _in_tensorflow if _framework(framework, function) == "tensorflow" else _in_torch
    with working(f"compiling and running {target}", delay=0), warnings.catch_warnings():
        # The report says all that the warnings say.
        warnings.simplefilter("ignore", HostFallbackWarning)
        with calling(target):
            report = ask(function, input or (), options)
    if as_json:
        print(report.to_json())
    else:
        out().print(report)
    if html is not None:
        Console(stderr=True).print(f"wrote {report.to_html(html)}", markup=False)


def _check_count(target: str, function: Callable[..., Any], inputs: Sequence[str]) -> None:
    """Check that a function takes so many arguments.

    Raises:
        OptionError: it does not.
    """
    called = function.forward if hasattr(function, "forward") else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        # Functions in C do not tell.
        return
    try:
        signature.bind(*inputs)
    except TypeError as error:
        raise OptionError(
            f"{target}{signature}: found {len(inputs)} --input: {error}; give one for each "
            "argument, such as --input f32[8,64]"
        ) from error


def _framework(asked: FrameworkName | None, function: Callable[..., Any]) -> FrameworkName:
    """Whose function it is: what the user says, or what its class belongs to."""
    if asked is not None:
        return asked
    rooms = {kind.__module__.partition(".")[0] for kind in type(function).__mro__}
    ours = type(function).__module__.startswith("pjrt_bridge.tf_interop")
    return "tensorflow" if ours or rooms & {"keras", "tensorflow"} else "torch"


def _in_torch(
    function: Callable[..., Any], inputs: Sequence[str], options: Mapping[str, Any]
) -> Report:
    need_torch("explain")
    from pjrt_bridge import torch_interop
    from pjrt_bridge.torch_interop.example_inputs import example_input

    return torch_interop.explain_with(options, function, *map(example_input, inputs))


def _in_tensorflow(
    function: Callable[..., Any], inputs: Sequence[str], options: Mapping[str, Any]
) -> Report:
    unknown = sorted(set(options) - {"plugin"})
    if unknown:
        raise OptionError(f"explain: functions of TensorFlow have no options {', '.join(unknown)}")
    need_tensorflow("explain")
    from pjrt_bridge import tf_interop
    from pjrt_bridge.tf_interop.example_inputs import example_input

    if not isinstance(function, tf_interop.Function):
        function = tf_interop.function(function, plugin=options.get("plugin"))
    elif options:
        raise OptionError("explain: the function is compiled already; give plugin to `function`")
    return tf_interop.explain(function, *map(example_input, inputs))
