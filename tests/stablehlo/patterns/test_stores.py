"""Values that are stored: those that a custom call has written are not copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.patterns import expressions as expressions_of
from pjrt_bridge.stablehlo.patterns import finishing, stores
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import expressions
from pjrt_bridge_cpu.kernels import XlaKernels

SHAPE = (64, 512)

Make = Callable[[Builder, Value], Sequence[Value]]


def kernels() -> XlaKernels:
    found = XlaKernels()
    found.can_compute = True
    return found


def text_of(make: Make) -> str:
    b = Builder([TensorType(SHAPE, dtypes.of("float32"))], finishing=finishing(kernels()))
    return b.finish(make(b, b.parameters[0])).text


def sums(b: Builder, x: Value) -> list[Value]:
    """Loops that read a value along its columns, which no expression has."""
    return [b.reduce_sum(x, (0,)), b.reduce_max(x, (0,))]


def test_the_result_of_an_expression_is_read_as_it_is() -> None:
    text = text_of(lambda b, x: sums(b, b.stored(b.multiply(x, x))))
    assert expressions.TARGET in text
    assert "call @stored" not in text


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda b, x: x, id="an argument"),
        pytest.param(lambda b, x: b.reduce_max(b.reshape(x, (2, 32, 512)), (0,)), id="a loop"),
        pytest.param(
            lambda b, x: b.transpose(b.stored(b.transpose(b.multiply(x, x), (1, 0))), (1, 0)),
            id="another order",
        ),
    ],
)
def test_what_is_not_written_is_stored(
    make: Callable[[Builder, Value], Value], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else a call would write what is transposed.
    roots = [name for name in expressions_of.ROOTS if name != "stablehlo.transpose"]
    monkeypatch.setattr(expressions_of, "ROOTS", roots)
    text = text_of(lambda b, x: sums(b, b.stored(make(b, x))))
    assert "call @stored" in text


def test_a_function_that_computes_is_called(client: Client) -> None:
    inner = Builder([TensorType(SHAPE, dtypes.of("float32"))])
    program = inner.finish([inner.negate(inner.parameters[0])])
    types = [TensorType(SHAPE, dtypes.of("float32"))]
    b = Builder(types, finishing=({"func.call": stores.stored},))
    found = b.call(program, [b.multiply(b.parameters[0], b.parameters[0])])
    x = np.ones(SHAPE, np.float32)
    np.testing.assert_array_equal(np.asarray(client.compile(b.finish(found))(x)[0]), -x)
