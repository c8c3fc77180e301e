"""Parts of a captured function as TensorFlow functions, and as StableHLO for given shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.stablehlo import Program, mhlo
from pjrt_bridge.stablehlo.precision import Precisions
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.tf_interop import compat, dtypes, randomness, xla_traces
from pjrt_bridge.tf_interop.capture import CapturedFunction
from pjrt_bridge.tf_interop.placement import GATHERED_FROM_NOTHING, gathers_from_nothing
from pjrt_bridge.tf_interop.split import Part

_INLINED = 1024
"""Elements of a constant that the function holds up to which the program contains it: its value
may be needed to compile."""


def traced(
    captured: CapturedFunction,
    part: Part,
    constants: Mapping[int, Any] | None = None,
    *,
    for_tensorflow: bool = False,
) -> Any:
    """A concrete function that does what a part does.

    Args:
        captured: the function.
        part: of it.
        constants: inputs that are no arguments, by value, with what they are.
        for_tensorflow: TensorFlow runs it, not a device.
    """
    constants = constants or {}
    inputs = [value for value in part.inputs if value not in constants]

    def body(*arguments: Any) -> list[Any]:
        tensors = dict(zip(inputs, arguments, strict=True))
        for value, held in constants.items():
            tensors[value] = tf.constant(held)
        for value in part.held:
            tensors[value] = _held(captured.captures[value])
        made: dict[int, Any] = {}
        for index in part.operations:
            operation = captured.operations[index]
            given = [tensors[value] for value in operation.inputs]
            rewritten = xla_traces.rewritten if for_tensorflow else randomness.rewritten
            found = rewritten(operation.made, given)
            if found is not None:
                tensors.update(zip(operation.outputs, found, strict=True))
                continue
            before = [made[other] for other in operation.after if other in made]
            copy = compat.copy(operation.made, given, before, operation.name)
            made[index] = copy
            tensors.update(zip(operation.outputs, copy.outputs, strict=True))
        return [tensors[value] for value in part.outputs]

    specs = [
        tf.TensorSpec(captured.values[value].shape, captured.values[value].dtype)
        for value in inputs
    ]
    return tf.function(body, autograph=False).get_concrete_function(*specs)


def _held(tensor: Any) -> Any:
    if dtypes.crosses(tensor.dtype) and tensor.shape.num_elements() <= _INLINED:
        return tf.constant(tensor.numpy(), tensor.dtype)
    return compat.capture(tensor)


@dataclass(frozen=True)
class Emitted:
    """A program and what its parameters and results are.

    Attributes:
        program: parameters are the inputs, then what the function holds; results are the outputs,
            then new values of variables.
        held: what the function holds: handles of variables, tensors.
        updates: (position among `held`, index of the new value among the results).
    """

    program: Program
    held: Sequence[Any]
    updates: Sequence[tuple[int, int]]


def emit(function: Any, types: Sequence[TensorType], outputs: int, *, exact: bool) -> Emitted:
    """The program of a concrete function for arguments of these shapes.

    Args:
        function: as `traced` makes it.
        types: of its arguments.
        outputs: how many results it has.
        exact: products and convolutions of float32 are float32; False: as TensorFlow's setting is
            (`tf.config.experimental.tensor_float_32_execution_enabled`).

    Raises:
        NotExportable: XLA cannot compile it (the message names operation and node), would give
            another shape, or its program has other parameters or results than it should.
        ProgramError: sizes of results depend on data.
    """
    if any(0 in type.shape for type in types):
        for made in function.graph.get_operations():
            if gathers_from_nothing(made, unknown=True):
                raise NotExportable(f"{made.type} (node {made.name}): {GATHERED_FROM_NOTHING}")
    specs = [
        tf.TensorSpec(type.shape, given.dtype)
        for type, given in zip(types, function.inputs, strict=False)
    ]
    held = list(function.captured_inputs)
    exported = compat.stablehlo(function, specs)
    program, aliases = mhlo.from_tensorflow(exported, Precisions() if exact else None)
    parameters, results = program.signature.parameters, program.signature.results
    updates = [(parameter - len(types), result) for parameter, result in aliases]
    if len(parameters) != len(types) + len(held) or sorted(result for _, result in updates) != list(
        range(outputs, len(results))
    ):
        raise NotExportable(
            f"function {function.name!r}: found a program of {len(parameters)} parameters and "
            f"{len(results)} results, expected {len(types)} + {len(held)} and {outputs}"
        )
    return Emitted(program, held, updates)
