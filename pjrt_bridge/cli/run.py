"""`pjrt-bridge run`: a StableHLO program on a plugin, with arrays from files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from pjrt_bridge import registry
from pjrt_bridge.cli.console import facts, fail, out, parse_options
from pjrt_bridge.cli.plugins import ClientOptions
from pjrt_bridge.errors import DataError

if TYPE_CHECKING:
    from pjrt_bridge.dtypes import DType
    from pjrt_bridge.stablehlo import Program, TensorType

MISSING_INPUTS = 2
"""Exit status where the inputs do not fit the program, as for any other wrong usage."""


def run(
    file: Annotated[
        Path,
        typer.Argument(help="StableHLO text, bytecode or a portable artifact.", metavar="FILE"),
    ],
    plugin: Annotated[
        str | None,
        typer.Option("--plugin", "-p", help="A plugin's name, a library, or name:library."),
    ] = None,
    input: Annotated[
        list[Path] | None,
        typer.Option("--input", "-i", metavar="FILE.npy", help="One per parameter, in order."),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", help="Write the results there: output_0.npy, ..."),
    ] = None,
    option: ClientOptions = None,
) -> None:
    """Compile a StableHLO program, run it once and print its results.

    Without inputs, a program that has parameters is not run: its signature and an example of the
    call are printed.
    """
    from pjrt_bridge.stablehlo import Program

    program = Program.from_file(file)
    parameters = program.signature.parameters
    paths = input or []
    if len(paths) != len(parameters):
        _explain(file, program)
        fail(f"{file}: expected {len(parameters)} --input, found {len(paths)}")
        raise typer.Exit(MISSING_INPUTS)
    arrays = [
        _load(path, parameter.type) for path, parameter in zip(paths, parameters, strict=True)
    ]
    client = registry.client(plugin, **parse_options(option or ()))
    with client.compile(program) as executable:
        results = [buffer.to_numpy() for buffer in executable(*arrays)]
    console = out()
    types = [result.type for result in program.signature.results]
    for index, (array, declared) in enumerate(zip(results, types, strict=True)):
        label = (f"result {index}", "bold")
        console.print(Text.assemble(label, "  ", _described(declared.dtype, array.shape)))
        console.print(_abbreviated(array, console.width), markup=False)
    if output_dir is not None:
        _write(results, output_dir)


def _explain(file: Path, program: Program) -> None:
    console = out()
    signature = program.signature
    console.print(Text(program.name, "bold"))
    rows = {
        f"input {index}": _described(parameter.type.dtype, parameter.type.shape)
        for index, parameter in enumerate(signature.parameters)
    }
    for index, result in enumerate(signature.results):
        rows[f"result {index}"] = _described(result.type.dtype, result.type.shape)
    console.print(facts(rows))
    files = "".join(f" --input input_{index}.npy" for index in range(len(signature.parameters)))
    console.print("\nRun it with one .npy file (numpy.save) per input:")
    console.print(f"  pjrt-bridge run {shlex.quote(str(file))}{files}", markup=False)


def _described(dtype: DType, shape: Sequence[int]) -> str:
    return f"{dtype} {'x'.join(map(str, shape)) or 'scalar'}"


def _load(path: Path, expected: TensorType) -> Any:
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
