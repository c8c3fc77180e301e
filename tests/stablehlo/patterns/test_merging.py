"""Elementwise expressions that are computed together: which, and where in a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, Program, TensorType, Value
from pjrt_bridge.stablehlo.kernel_attributes import Expression
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.patterns import expressions, for_target
from tests.stablehlo.helpers import program

F32 = dtypes.of("float32")
X = TensorType((16, 1024), F32)
Body = Callable[[Builder, Value, Value], Sequence[Value]]


class Calling(Kernels):
    """Kernels that call for each expression what no target has."""

    def expression(
        self, b: Builder, expression: Expression, operands: Sequence[Value]
    ) -> Sequence[Value] | None:
        types = [TensorType(result.shape, result.dtype) for result in expression.results]
        return b.custom_call("computed", operands, types)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "LEAST", 1)


def written(body: Body) -> Program:
    return for_target(program(body, X, X), Calling())


def reader(b: Builder, value: Value) -> Value:
    return b.custom_call("reader", [value], [value.type])[0]


def both(b: Builder, x: Value, y: Value) -> Sequence[Value]:
    return b.add(x, y), b.multiply(x, y)


def one_is_read_before(b: Builder, x: Value, y: Value) -> Sequence[Value]:
    first = reader(b, b.add(x, y))
    return first, b.multiply(x, y)


def one_is_read_behind(b: Builder, x: Value, y: Value) -> Sequence[Value]:
    total, product = b.add(x, y), b.multiply(x, y)
    return reader(b, total), product


def one_is_moved(b: Builder, x: Value, y: Value) -> Sequence[Value]:
    turned = b.transpose(b.reshape(b.add(x, y), (2, 8, 1024)), (1, 0, 2))
    return turned, b.multiply(x, y)


def one_is_read_in_a_region(b: Builder, x: Value, y: Value) -> Sequence[Value]:
    total = b.add(x, y)
    choice = b.compare(b.reduce_sum(x, (0, 1)), b.full((), 0, F32), "GT")
    (chosen,) = b.if_(choice, lambda: reader(b, total), lambda: b.negate(y))
    return chosen, b.multiply(x, y)


def other_arrays(b: Builder, x: Value, y: Value) -> Sequence[Value]:
    return b.tanh(x), b.exp(y)


COUNTS: dict[str, tuple[Body, Sequence[int]]] = {
    "both": (both, [2]),
    "one is read before": (one_is_read_before, [1, 1]),
    "one is read behind": (one_is_read_behind, [2]),
    "one is moved": (one_is_moved, [2]),
    "one is read in a region": (one_is_read_in_a_region, [1, 1]),
    "other arrays": (other_arrays, [1, 1]),
}


@pytest.mark.parametrize("name", COUNTS)
def test_which_expressions_are_one_call(name: str) -> None:
    body, expected = COUNTS[name]
    assert sorted(results(written(body))) == expected


def results(found: Program) -> list[int]:
    """How many results each call of an expression has."""
    lines = [line for line in found.text.splitlines() if "@computed(" in line]
    return [line.split("->")[-1].count("tensor<") for line in lines]


def test_operands_may_have_been_rewritten_since() -> None:
    """A scale of columns, and a value that is repeated, are calls only once others read them."""

    def body(b: Builder, x: Value, y: Value) -> Sequence[Value]:
        scale = b.rsqrt(b.reshape(b.slice(y, (0, 0), (1, 1024), (1, 1)), (1024,)))
        first = b.multiply(x, b.broadcast_in_dim(scale, x.shape, (1,)))
        second = b.tanh(x)
        repeated = b.broadcast_in_dim(second, (8, 16, 1024), (1, 2))
        return reader(b, first), b.add(repeated, repeated)

    assert sorted(results(written(body))) == [1, 1, 2]


def test_a_program_with_many_readers_of_an_array() -> None:
    def body(b: Builder, x: Value, y: Value) -> Sequence[Value]:
        return [b.multiply(x, b.full(x.shape, at, F32)) for at in range(2, 90)]

    found: list[Any] = results(written(body))
    assert sum(found) == 88
    assert set(found) == {4}
