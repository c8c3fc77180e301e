"""Operations that move elements, drawn by chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from pjrt_bridge.stablehlo import Builder, Value

MOST = 600
"""Elements of a value, at most."""


def drawn_moves(data: st.DataObject, b: Builder, parameters: Sequence[Value]) -> Value:
    """What several operations that move elements make of parameters of one element type."""
    values = list(parameters)
    for _ in range(data.draw(st.integers(1, 6))):
        x = data.draw(st.sampled_from(values[-3:]))
        kind = data.draw(st.sampled_from(sorted(_MADE)))
        made = _MADE[kind](data, b, x, values)
        if 0 < made.size <= MOST:
            values.append(made)
    return values[-1]


def _transposed(data: st.DataObject, b: Builder, x: Value, values: Sequence[Value]) -> Value:
    return b.transpose(x, data.draw(st.permutations(range(x.rank))))


def _reshaped(data: st.DataObject, b: Builder, x: Value, values: Sequence[Value]) -> Value:
    sizes, left = list[int](), x.size
    for _ in range(data.draw(st.integers(0, 3))):
        parts = [part for part in range(1, left + 1) if left % part == 0]
        sizes.append(data.draw(st.sampled_from(parts)))
        left //= sizes[-1]
    return b.reshape(x, (*sizes, left))


def _repeated(data: st.DataObject, b: Builder, x: Value, values: Sequence[Value]) -> Value:
    at, count = data.draw(st.integers(0, x.rank)), data.draw(st.integers(1, 3))
    dims = [dim if dim < at else dim + 1 for dim in range(x.rank)]
    return b.broadcast_in_dim(x, (*x.shape[:at], count, *x.shape[at:]), dims)


def _sliced(data: st.DataObject, b: Builder, x: Value, values: Sequence[Value]) -> Value:
    starts = [data.draw(st.integers(0, size - 1)) for size in x.shape]
    limits = [
        data.draw(st.integers(start + 1, size)) for start, size in zip(starts, x.shape, strict=True)
    ]
    return b.slice(x, starts, limits, [data.draw(st.integers(1, 3)) for _ in x.shape])


def _reversed(data: st.DataObject, b: Builder, x: Value, values: Sequence[Value]) -> Value:
    dims = data.draw(st.lists(st.integers(0, x.rank - 1), max_size=x.rank, unique=True))
    return b.reverse(x, dims)


def _padded(data: st.DataObject, b: Builder, x: Value, values: Sequence[Value]) -> Value:
    low = [data.draw(st.integers(-2, 3)) for _ in x.shape]
    high = [data.draw(st.integers(-2, 3)) for _ in x.shape]
    interior = [data.draw(st.sampled_from([0, 0, 0, 0, 1])) for _ in x.shape]
    sizes = [
        size + (size - 1) * inside + before + behind
        for size, inside, before, behind in zip(x.shape, interior, low, high, strict=True)
    ]
    # A parameter is no constant.
    value = data.draw(st.sampled_from(["constant", "computed"]))
    edge = b.full((), 1, x.dtype)
    if value == "computed":
        source = values[0]
        edge = b.reshape(
            b.slice(source, [0] * source.rank, [1] * source.rank, [1] * source.rank), ()
        )
    return b.pad(x, edge, low, high, interior) if min(sizes) > 0 else x


def _joined(data: st.DataObject, b: Builder, x: Value, values: Sequence[Value]) -> Value:
    dim = data.draw(st.integers(0, x.rank - 1))
    others = [item for item in values if item.shape == x.shape]
    return b.concatenate([x, data.draw(st.sampled_from(others)), x], dim)


def _overwritten(data: st.DataObject, b: Builder, x: Value, values: Sequence[Value]) -> Value:
    sizes = [data.draw(st.integers(1, size)) for size in x.shape]
    part = b.slice(x, [0] * x.rank, sizes, [1] * x.rank)
    starts = [b.full((), data.draw(st.integers(-1, size)), "int32") for size in x.shape]
    return b.dynamic_update_slice(x, b.reverse(part, [0]), starts)


_Made = Callable[[st.DataObject, Builder, Value, Sequence[Value]], Value]
_MADE: dict[str, _Made] = {
    "joined": _joined,
    "overwritten": _overwritten,
    "padded": _padded,
    "repeated": _repeated,
    "reshaped": _reshaped,
    "reversed": _reversed,
    "sliced": _sliced,
    "transposed": _transposed,
}


def sizes_of(data: st.DataObject) -> tuple[int, ...]:
    """The shape of a parameter."""
    sizes = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3)
    return tuple(data.draw(sizes.filter(lambda found: math.prod(found) <= MOST)))
