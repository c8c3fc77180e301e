"""`pjrt-bridge explain`: what runs on the plugin, what stays on the host, and why."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pjrt_bridge.cli.console import out
from pjrt_bridge.cli.frameworks import need_tensorflow, need_torch
from pjrt_bridge.errors import HostFallbackWarning, OptionError
from pjrt_bridge.report.data import Framework
from pjrt_bridge.report.report import Report


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
    plugin: Annotated[
        str | None,
        typer.Option("--plugin", "-p", help="A plugin's name, a library, or name:library."),
    ] = None,
    host_op: Annotated[
        list[str] | None,
        typer.Option("--host-op", metavar="OPERATOR", help="Keep an operator on the host."),
    ] = None,
    min_segment: Annotated[
        int | None,
        typer.Option("--min-segment", min=1, help="Fewest operators for which the device is used."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the report as a page.", metavar="FILE")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    framework: Annotated[
        Framework | None, typer.Option("--framework", help="Whose function it is.")
    ] = None,
) -> None:
    """Compile a function of PyTorch or TensorFlow, call it, and report what ran where and why.

    A callable that takes no arguments makes its own inputs; a module class is made without
    arguments. What was compiled already keeps the options that it was given. A plain function is
    PyTorch's, unless --framework says otherwise.
    """
    function = _load(target)
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
    progress = Console(stderr=True)
    with progress.status(f"compiling and running {target}"), warnings.catch_warnings():
        # The report says all that the warnings say.
        warnings.simplefilter("ignore", HostFallbackWarning)
        report = ask(function, input or (), options)
    if json:
        print(report.to_json())
    else:
        out().print(report)
    if html is not None:
        progress.print(f"wrote {report.to_html(html)}", markup=False)


def _check_count(target: str, function: Callable[..., Any], inputs: Sequence[str]) -> None:
    """See that a function takes so many arguments.

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


def _framework(asked: Framework | None, function: Callable[..., Any]) -> Framework:
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


def _callables(module: Any) -> str:
    """What else could have been meant, as the end of a sentence."""
    own = getattr(module, "__name__", None)
    names = [
        name
        for name, value in getattr(module, "__dict__", {}).items()
        if callable(value) and name[0] != "_" and getattr(value, "__module__", None) == own
    ]
    return f"; it has {', '.join(names[:10])}" if names else ""


def _load(target: str) -> Callable[..., Any]:
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise OptionError(f"found {target!r}, expected package.module:name or file.py:name")
    found: Any = _module(where)
    for part in name.split("."):
        if not hasattr(found, part):
            raise OptionError(f"{target}: {where} has no {name!r}{_callables(found)}")
        found = getattr(found, part)
    if inspect.isclass(found):
        found = found()
    if not callable(found):
        raise OptionError(f"{target} is a {type(found).__name__}, expected a function or module")
    return found  # type: ignore[no-any-return]


def _module(where: str) -> Any:
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise OptionError(f"{where}: no such file")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        sys.path.insert(0, str(path.parent.resolve()))
        loader = spec.loader
        _imported(where, lambda: loader.exec_module(module))
        return module
    sys.path.insert(0, os.getcwd())
    return _imported(where, lambda: importlib.import_module(where))


def _imported(where: str, run: Callable[[], Any]) -> Any:
    """Import a module of the user's.

    Raises:
        OptionError: it cannot be imported; the text names the line.
    """
    try:
        return run()
    except ModuleNotFoundError as error:
        if error.name is not None and f"{where}.".startswith(f"{error.name}."):
            raise OptionError(f"{where}: no module {error.name!r} here or installed") from error
        install = f"; pip install {error.name}" if error.name in ("torch", "tensorflow") else ""
        raise OptionError(f"{where}: cannot be imported: {error}{install}") from error
    except Exception as error:
        lines = traceback.extract_tb(error.__traceback__)
        line = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else where
        raise OptionError(
            f"{where}: cannot be imported: {line}: {type(error).__name__}: {error}"
        ) from error
