"""`pjrt-bridge run`: a model or a program on a plugin, with arrays from files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from pjrt_bridge import registry
from pjrt_bridge.cli.console import facts, fail, out, parse_options
from pjrt_bridge.cli.opening import (
    FUNCTION_FLAGS,
    FUNCTION_HELP,
    SAVED_MODEL,
    TRUSTED_HELP,
    Choice,
    check_offered,
    kind_of,
    open_model,
)
from pjrt_bridge.cli.plugins import ClientOptions, PluginName
from pjrt_bridge.cli.runnable import (
    ExportedRunnable,
    RunnableModel,
    SavedModelRunnable,
    described_array,
)
from pjrt_bridge.errors import OptionError

if TYPE_CHECKING:
    from pjrt_bridge.runtime import Client

MISSING_INPUTS = 2
"""Exit status where the inputs do not fit the program, as for any other wrong usage."""


def run(
    model: Annotated[
        Path,
        typer.Argument(
            help="A saved model, a bundle of PyTorch/XLA, a SavedModel of TensorFlow, StableHLO "
            "(text, bytecode or a portable artifact), or what jax.export wrote.",
            metavar="DIR|FILE",
        ),
    ],
    plugin: PluginName = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="[NAME=]INPUT",
            help="One per input, by name or in order: FILE.npy; for a SavedModel also f32[8,64], "
            "i64[4,128]<1000 (random numbers) or str[ant,bee].",
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", help="Write the results there: output_0.npy, ..."),
    ] = None,
    function: Annotated[str | None, typer.Option(*FUNCTION_FLAGS, help=FUNCTION_HELP)] = None,
    platform: Annotated[
        str | None,
        typer.Option(
            "--platform",
            help="For a jax.export file with several platforms, the one to run: cpu, cuda, tpu.",
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="NAME=N",
            help="A symbolic size of a jax.export file, or a size that selects a program of a "
            "saved model. Repeatable.",
        ),
    ] = None,
    trusted: Annotated[bool, typer.Option("--trusted", help=TRUSTED_HELP)] = False,
    option: ClientOptions = None,
) -> None:
    """Compile a model or a program, run it once and print its results.

    If inputs are missing, the program is not run; its signature and an example of the call are
    printed. A SavedModel needs TensorFlow, which runs the operations that the plugin cannot run.
    """
    options: dict[str, Any] = parse_options(option or ())

    def client() -> Client:
        return registry.client(plugin, **options)

    choice = Choice(
        function,
        platform,
        size or (),
        default_platform=lambda: client().platform_name,
        trusted=trusted,
    )
    opened = _open(model, choice)
    texts = _assigned(list(opened.inputs), input or [])
    if opened.inputs.keys() != texts.keys() or len(input or ()) != len(opened.inputs):
        _explain(model, opened)
        fail(f"{model}: expected {len(opened.inputs)} --input, found {len(input or ())}")
        raise typer.Exit(MISSING_INPUTS)
    given = {name: opened.read(name, text) for name, text in texts.items()}
    results = opened.run(given, client())
    console = out()
    for label, array in zip(opened.results, results, strict=True):
        console.print(Text.assemble((label, "bold"), "  ", described_array(array)))
        console.print(_abbreviated(array, console.width), markup=False)
    if output_dir is not None:
        _write(results, output_dir)


def _open(path: Path, choice: Choice) -> RunnableModel:
    if path.is_dir() and kind_of(path) == SAVED_MODEL:
        check_offered(path, SAVED_MODEL, choice, "function")
        return SavedModelRunnable(path, choice.function)
    return ExportedRunnable(open_model(path, choice))


def _assigned(names: Sequence[str], inputs: Sequence[str]) -> dict[str, str]:
    """What is given for each input: by name where one is said, else the next that has none.

    Raises:
        OptionError: an unknown name, or one that is given twice.
    """
    named: dict[str, str] = {}
    others: list[str] = []
    for text in inputs:
        name, equals, value = text.partition("=")
        if equals and name in names:
            if name in named:
                raise OptionError(f"--input {text}: {name!r} is given twice")
            named[name] = value
        # A word of `str[a=b]` is no name.
        elif equals and "[" not in name and not Path(text).exists():
            raise OptionError(
                f"--input {text}: no input {name!r}; expected one of {', '.join(names) or 'none'}"
            )
        else:
            others.append(text)
    free = [name for name in names if name not in named]
    return named | dict(zip(free, others, strict=False))


def _explain(path: Path, model: RunnableModel) -> None:
    console = out()
    console.print(Text(model.name, "bold"))
    rows: dict[str, object] = {}
    command = f"pjrt-bridge run {shlex.quote(str(path))}"
    for index, (name, expected) in enumerate(model.inputs.items()):
        plain = name == f"input_{index}"
        rows[f"input {index if plain else name}"] = expected
        given = f"{'' if plain else f'{name}='}{model.example(name, index)}"
        command += f" --input {shlex.quote(given)}"
    console.print(facts({**rows, **model.results, **model.about}))
    console.print(f"\nRun it with {model.one_of} per input:", markup=False)
    console.print(f"  {command}", markup=False)


def _abbreviated(array: Any, width: int) -> str:
    import numpy as np

    return np.array2string(array, threshold=64, edgeitems=3, max_line_width=width, precision=6)


def _write(results: Sequence[Any], folder: Path) -> None:
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    for index, array in enumerate(results):
        path = folder / f"output_{index}.npy"
        np.save(path, array)
        out().print(f"wrote {path}", markup=False)
