"""`pjrt-bridge run`: a model or a StableHLO program on a plugin, with arrays from files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from pjrt_bridge import registry
from pjrt_bridge.cli.console import facts, fail, out, parse_options
from pjrt_bridge.cli.opening import Choice, open_model
from pjrt_bridge.cli.plugins import ClientOptions
from pjrt_bridge.errors import DataError, OptionError

if TYPE_CHECKING:
    from pjrt_bridge.dtypes import DType
    from pjrt_bridge.exported import ExportedModel, TensorLeaf

MISSING_INPUTS = 2
"""Exit status where the inputs do not fit the program, as for any other wrong usage."""


def run(
    model: Annotated[
        Path,
        typer.Argument(
            help="A saved model, a bundle of PyTorch/XLA, StableHLO (text, bytecode or a portable "
            "artifact), or what jax.export wrote.",
            metavar="DIR|FILE",
        ),
    ],
    plugin: Annotated[
        str | None,
        typer.Option("--plugin", "-p", help="A plugin's name, a library, or name:library."),
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input", "-i", metavar="[NAME=]FILE.npy", help="One per input, by name or in order."
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", help="Write the results there: output_0.npy, ..."),
    ] = None,
    function: Annotated[
        str | None, typer.Option("--function", help="Of a bundle that holds several.")
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option("--platform", help="Of what jax.export wrote for several: cpu, cuda, tpu."),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="NAME=N",
            help="Of what jax.export left symbolic, or of a model with programs for several.",
        ),
    ] = None,
    option: ClientOptions = None,
) -> None:
    """Compile a model or a program, run it once and print its results.

    Without inputs, a program that has parameters is not run: its signature and an example of the
    call are printed.
    """
    options = parse_options(option or ())
    choice = Choice(
        function,
        platform,
        size or (),
        default_platform=lambda: registry.client(plugin, **options).platform_name,
    )
    opened = open_model(model, choice)
    leaves = _asked(opened)
    paths = _paths(list(leaves), input or [])
    missing = leaves.keys() - paths.keys()
    if missing or len(input or ()) != len(leaves):
        _explain(model, opened, leaves)
        fail(f"{model}: expected {len(leaves)} --input, found {len(input or ())}")
        raise typer.Exit(MISSING_INPUTS)
    arrays = {name: _load(path, leaves[name]) for name, path in paths.items()}
    given = [
        arrays[leaf.name] if leaf.name in arrays else getattr(leaf, "value", None)
        for leaf in opened.interface.inputs
    ]
    with opened.load_on(registry.client(plugin, **options)) as loaded:
        results = [_result(value) for value in loaded.run(given)]
    console = out()
    for label, array in zip(_labels(opened), results, strict=True):
        described = _described(_dtype(array), array.shape)
        console.print(Text.assemble((label, "bold"), "  ", described))
        console.print(_abbreviated(array, console.width), markup=False)
    if output_dir is not None:
        _write(results, output_dir)


def _asked(model: ExportedModel) -> dict[str, TensorLeaf]:
    from pjrt_bridge.exported import TensorLeaf

    return {leaf.name: leaf for leaf in model.interface.inputs if isinstance(leaf, TensorLeaf)}


def _paths(names: Sequence[str], inputs: Sequence[str]) -> dict[str, Path]:
    """The file of each input: by name where one is said, else the next that has none.

    Raises:
        OptionError: an unknown name, or one that is given twice.
    """
    named: dict[str, Path] = {}
    others: list[Path] = []
    for text in inputs:
        name, equals, path = text.partition("=")
        if equals and name in names:
            if name in named:
                raise OptionError(f"--input {text}: {name!r} is given twice")
            named[name] = Path(path)
        elif equals and not Path(text).exists():
            raise OptionError(
                f"--input {text}: no input {name!r}; expected one of {', '.join(names) or 'none'}"
            )
        else:
            others.append(Path(text))
    free = [name for name in names if name not in named]
    return named | dict(zip(free, others, strict=False))


def _explain(path: Path, model: ExportedModel, leaves: dict[str, TensorLeaf]) -> None:
    from pjrt_bridge.exported.ahead import CompiledProgram
    from pjrt_bridge.stablehlo import Program

    console = out()
    console.print(Text(model.name, "bold"))
    rows: dict[str, object] = {}
    files = ""
    for index, (name, leaf) in enumerate(leaves.items()):
        plain = name == f"input_{index}"
        rows[f"input {index if plain else name}"] = _described(leaf.dtype, leaf.shape)
        files += f" --input {'' if plain else shlex.quote(name) + '='}input_{index}.npy"
    one = model.specializations[0]
    for label, slot in zip(_labels(model), one.outputs, strict=True):
        if slot.kind == "result" and isinstance(one.program, Program):
            type = one.program.signature.results[slot.of].type
            rows[label] = _described(type.dtype, type.shape)
        else:
            # What a program in parts gives may have sizes that depend on data.
            rows[label] = "computed" if slot.kind == "result" else slot.kind
    if made_for := {p.made_for for p in model.device_programs if isinstance(p, CompiledProgram)}:
        rows["compiled for"] = "; ".join(" ".join(text.split()) for text in sorted(made_for))
    console.print(facts(rows))
    console.print("\nRun it with one .npy file (numpy.save) per input:")
    console.print(f"  pjrt-bridge run {shlex.quote(str(path))}{files}", markup=False)


def _labels(model: ExportedModel) -> list[str]:
    """What each result is called: its number, and its place where results are nested."""
    outputs = model.interface.outputs
    paths = outputs.paths("") if outputs.kind == "dict" else {}
    count = len(model.specializations[0].outputs)
    return [f"result {index}{paths.get(index, '')}" for index in range(count)]


def _described(dtype: DType, shape: Sequence[int | str]) -> str:
    return f"{dtype} {'x'.join(map(str, shape)) or 'scalar'}"


def _dtype(array: Any) -> DType:
    from pjrt_bridge import dtypes

    return dtypes.from_numpy(array.dtype)


def _result(value: Any) -> Any:
    import numpy as np

    from pjrt_bridge.runtime import Buffer

    return value.to_numpy() if isinstance(value, Buffer) else np.asarray(value)


def _load(path: Path, expected: TensorLeaf) -> Any:
    import numpy as np

    try:
        with path.open("rb") as file:
            array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        cause = getattr(error, "strerror", None) or error
        raise DataError(f"--input {path}: cannot be read as a .npy file: {cause}") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"--input {path}: holds several arrays, expected a .npy file with one")
    host = expected.dtype.numpy
    # A .npy file keeps only the width of the types that NumPy does not know (bfloat16, ...).
    if array.dtype.kind == "V" and array.dtype.itemsize == host.itemsize:
        array = array.view(host)
    return array


def _abbreviated(array: Any, width: int) -> str:
    import numpy as np

    return np.array2string(array, threshold=64, edgeitems=3, max_line_width=width, precision=6)


def _write(results: list[Any], folder: Path) -> None:
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    for index, array in enumerate(results):
        path = folder / f"output_{index}.npy"
        np.save(path, array)
        out().print(f"wrote {path}", markup=False)
