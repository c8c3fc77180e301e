"""Run a few builder calls through the reference interpreter."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, Program, TensorType, Value
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate

Body = Callable[..., Value | Sequence[Value]]


def tensor(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(shape, dtypes.of(dtype))


def program(body: Body, *types: TensorType) -> Program:
    """The program of `body(builder, *parameters)`, after checks of what the values claimed."""
    builder = Builder(types)
    returned = body(builder, *builder.parameters)
    outputs = [returned] if isinstance(returned, Value) else list(returned)
    built = builder.finish(outputs)
    assert [r.type for r in built.signature.results] == [v.type for v in outputs]
    assert [p.type for p in built.signature.parameters] == list(types)
    return built


def run(body: Body, *arrays: Any) -> Any:
    """Outputs of `body(builder, *values)`; a single one comes bare."""
    arrays = tuple(np.asarray(array) for array in arrays)
    types = [TensorType(a.shape, dtypes.from_numpy(a.dtype)) for a in arrays]
    built = program(body, *types)
    outputs = evaluate(built, *arrays)
    for output, result in zip(outputs, built.signature.results, strict=True):
        assert output.shape == result.type.shape
        assert output.dtype == result.type.dtype.numpy
    return outputs[0] if len(outputs) == 1 else outputs
