"""TensorFlow functions as StableHLO programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.program.saved import SavedProgram
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.tf_interop import compat, dtypes
from pjrt_bridge.tf_interop.capture import CapturedFunction, capture
from pjrt_bridge.tf_interop.constants import needs
from pjrt_bridge.tf_interop.emit import emit, traced
from pjrt_bridge.tf_interop.function import polymorphic
from pjrt_bridge.tf_interop.placement import Placement
from pjrt_bridge.tf_interop.split import Part


def export(
    fn: Callable[..., Any], /, *specs: Any, target: str | None = None, **named: Any
) -> Program:
    """A TensorFlow function as one program.

    Its parameters are the arguments, flat, then the variables and large constants that the function
    holds; its results are those of the function, flat, then the new values of variables that it
    updates, in the order of the variables. Nothing is executed. Products and convolutions of
    float32 state that they are to be exact (`precision_config`).

    Args:
        fn: what `function` takes.
        specs: a `tf.TensorSpec` of known shape, a tensor or a Python value for each argument.
        target: StableHLO version for which the program is written, such as `"1.8.0"`; by default
            it can be written for any, with `Program.portable_artifact`.
        named: the same for arguments by name.

    Raises:
        NotExportable: operations that do not compile (all of them, with their source lines), sizes
            that are not known.
        UnsupportedDtype: an argument that no device takes.
        ProgramError: a version that there is none of.
    """
    concrete = compat.for_xla(polymorphic(fn)).get_concrete_function(*specs, **named)
    captured = capture(concrete)
    types = [_type(captured, value) for value in captured.arguments]
    placed = Placement(captured, {}).fallback_reasons()
    part = _whole(captured)
    wanted = needs(captured, part)
    found = placed or wanted.fallback_reasons
    if found:
        raise _refusal(captured, list(map(str, found.values())))
    if wanted.values:
        names = ", ".join(repr(captured.values[value].name) for value in wanted.values)
        raise _refusal(captured, [f"the value of {names} is needed to compile; make it constant"])
    try:
        with compat.eagerly():
            made = traced(captured, part)
            program = emit(made, types, len(part.outputs), exact=True).program
    except NotExportable as error:
        raise _refusal(captured, [" ".join(str(error).split())]) from error
    if target is None:
        return program
    return SavedProgram(program.portable_artifact(target), program.name, program.signature)


def _refusal(captured: CapturedFunction, reasons: list[str]) -> NotExportable:
    return NotExportable(
        f"function {captured.name!r} cannot become one program: {'; '.join(reasons)}",
        reasons=reasons,
    )


def _type(captured: CapturedFunction, value: int) -> TensorType:
    tensor = captured.values[value]
    dtype = dtypes.of(tensor.dtype, f"argument {tensor.name!r}")
    if not tensor.shape.is_fully_defined():
        raise _refusal(
            captured,
            [f"argument {tensor.name!r} has shape {tensor.shape}; give every size, as in a spec"],
        )
    return TensorType(tuple(tensor.shape), dtype)


def _whole(captured: CapturedFunction) -> Part:
    return Part(
        on_device=True,
        operations=tuple(range(len(captured.operations))),
        inputs=tuple(captured.arguments),
        places=(),
        held=tuple(captured.captures),
        outputs=tuple(captured.outputs),
        fallback_reasons=(),
        reads=(),
        takes_arguments=True,
        gives_results=True,
    )
