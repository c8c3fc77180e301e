"""Running combinations along a dimension: sums so far, products so far, largest so far.

In blocks: the elements of a block are combined one after the other, all blocks side by side; then
the total of all blocks before it, by a scan of the blocks' totals, is combined with each element.
That takes about five combinations for each element, whatever the length, and few passes over
memory. Two levels of this are the algorithm of Blelloch, "Prefix Sums and Their Applications"
(1990), section 1.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context, Scalar
from pjrt_bridge.torch_interop.lowering.shaping.shape import part

_BLOCK = 8

Values = tuple[Value, ...]
CombineTuples = Callable[[Values, Values], Sequence[Value]]


def scan(
    c: Context, x: Value, dim: int, start: Scalar, combine: Callable[[Value, Value], Value]
) -> Value:
    """Inclusive running combination along `dim`, which `x` has.

    `combine(earlier, later)` must be associative with identity `start`.
    """
    (found,) = scan_together(c, (x,), dim, (start,), lambda old, new: (combine(*old, *new),))
    return found


def scan_together(
    c: Context, xs: Values, dim: int, starts: Sequence[Scalar], combine: CombineTuples
) -> Values:
    """The same for tensors of one shape whose elements at one place belong together."""
    size = xs[0].shape[dim]
    if size <= 1:
        return xs
    width = min(_BLOCK, size)
    count = -(-size // width)
    identities = [c.full((), start, x.dtype) for x, start in zip(xs, starts, strict=True)]
    before, after = xs[0].shape[:dim], xs[0].shape[dim + 1 :]
    blocks = (*before, count, *after)
    lines = (*blocks[: dim + 1], width, *after)
    rows = [
        c.reshape(_moved(c, x, identity, dim, 0, count * width - size), lines)
        for x, identity in zip(xs, identities, strict=True)
    ]
    columns = [
        tuple(c.reshape(part(c, row, dim + 1, at, at + 1), blocks) for row in rows)
        for at in range(width)
    ]
    for at in range(1, width):
        columns[at] = tuple(combine(columns[at - 1], columns[at]))
    if count > 1:
        totals = scan_together(c, columns[-1], dim, starts, combine)
        earlier = tuple(
            _moved(c, total, identity, dim, 1, -1)
            for total, identity in zip(totals, identities, strict=True)
        )
        columns = [tuple(combine(earlier, column)) for column in columns]
    single = (*blocks[: dim + 1], 1, *after)
    joined = (
        c.b.concatenate([c.reshape(value, single) for value in values], dim + 1)
        for values in zip(*columns, strict=True)
    )
    whole = (*before, count * width, *after)
    return tuple(part(c, c.reshape(value, whole), dim, 0, size) for value in joined)


def _moved(c: Context, x: Value, identity: Value, dim: int, low: int, high: int) -> Value:
    """`x` padded along `dim` with identities before and behind it; negative numbers crop."""
    if low == high == 0:
        return x
    lows, highs = ([n if d == dim else 0 for d in range(x.rank)] for n in (low, high))
    return c.b.pad(x, identity, lows, highs, [0] * x.rank)
