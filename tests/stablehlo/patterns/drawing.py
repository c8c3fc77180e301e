"""Elementwise operations and such that move elements, drawn by chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, Value

F32, BF16 = map(dtypes.of, ("float32", "bfloat16"))


def drawn(data: st.DataObject, b: Builder, parameters: Sequence[Value]) -> Sequence[Value]:
    """Parameters, all float32, and what operations drawn by chance compute of them."""
    values = list(parameters)
    for _ in range(data.draw(st.integers(1, 7))):
        x = data.draw(st.sampled_from(values))
        y = data.draw(st.sampled_from([item for item in values if item.shape == x.shape]))
        kind = data.draw(st.sampled_from(sorted(MADE)))
        values.append(MADE[kind](data, b, x, y))
    return values


def _transposed(data: st.DataObject, b: Builder, x: Value, y: Value) -> Value:
    return b.transpose(x, data.draw(st.permutations(range(x.rank))))


def _reshaped(data: st.DataObject, b: Builder, x: Value, y: Value) -> Value:
    size = math.prod(x.shape)
    first = data.draw(st.sampled_from([part for part in range(1, size + 1) if size % part == 0]))
    return b.reshape(x, (first, size // first))


def _repeated(data: st.DataObject, b: Builder, x: Value, y: Value) -> Value:
    at = data.draw(st.integers(0, x.rank))
    shape = (*x.shape[:at], 2, *x.shape[at:])
    if math.prod(shape) > 400:
        return x
    return b.broadcast_in_dim(x, shape, [dim for dim in range(len(shape)) if dim != at])


def _sliced(data: st.DataObject, b: Builder, x: Value, y: Value) -> Value:
    starts = [data.draw(st.integers(0, size - 1)) for size in x.shape]
    return b.slice(x, starts, x.shape, [1] * x.rank)


def _joined(data: st.DataObject, b: Builder, x: Value, y: Value) -> Value:
    return b.concatenate([x, y], data.draw(st.integers(0, x.rank - 1)))


def _chosen(data: st.DataObject, b: Builder, x: Value, y: Value) -> Value:
    direction = data.draw(st.sampled_from(["EQ", "NE", "LT", "LE", "GT", "GE"]))
    return b.select(b.compare(x, y, direction), x, b.negate(y))


def _narrow(data: st.DataObject, b: Builder, x: Value, y: Value) -> Value:
    narrow = [b.convert(item, BF16) for item in (x, y)]
    return b.convert(b.multiply(*narrow), F32)


MADE: dict[str, Callable[[st.DataObject, Builder, Value, Value], Value]] = {
    "add": lambda _, b, x, y: b.add(x, y),
    "chosen": _chosen,
    "exponential": lambda _, b, x, y: b.exp(b.minimum(x, b.full(x.shape, 2, F32))),
    "joined": _joined,
    "logistic": lambda _, b, x, y: b.logistic(x),
    "multiply": lambda _, b, x, y: b.multiply(x, y),
    "narrow": _narrow,
    "number": lambda _, b, x, y: b.subtract(x, b.full(x.shape, 0.5, F32)),
    "repeated": _repeated,
    "reshaped": _reshaped,
    "sliced": _sliced,
    "sine": lambda _, b, x, y: b.sin(x),
    "tanh": lambda _, b, x, y: b.tanh(x),
    "transposed": _transposed,
}
