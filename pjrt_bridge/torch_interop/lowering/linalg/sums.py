"""Sums over products of several tensors, and over exponentials.

ATen semantics kept: half precision is accumulated in float32 and rounded once; with `beta == 0` the
added tensor is not read; a running `logcumsumexp` is exact about infinities: of -inf alone it is
-inf, and +inf and NaN stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context, Scalar, normalize_dim
from pjrt_bridge.torch_interop.lowering.linalg.matmul import add_product
from pjrt_bridge.torch_interop.lowering.math.scan import Values, scan_together
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering


@lowering("aten.addbmm.default")
def add_batch_of_products(
    c: Context, bias: Value, x: Value, y: Value, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Value:
    """`beta * bias + alpha * (x[0] @ y[0] + x[1] @ y[1] + ...)`, as one larger product."""
    batch, rows, inner = x.shape
    wide = c.reshape(c.b.transpose(x, (1, 0, 2)), (rows, batch * inner))
    return add_product(
        c, bias, wide, c.reshape(y, (batch * inner, y.shape[2])), beta=beta, alpha=alpha
    )


@lowering("aten._trilinear.default")
def trilinear(
    c: Context,
    first: Value,
    second: Value,
    third: Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Value:
    """The sum over `sumdim` of a product of three tensors, each with new dimensions of 1."""
    rank = first.rank + len(expand1)
    summed = {normalize_dim(d, rank) for d in sumdim}
    operands = [
        _Labelled(
            c,
            c.widen(x),
            [d for d in range(rank) if d not in {normalize_dim(e, rank) for e in new}],
        )
        for x, new in ((first, expand1), (second, expand2), (third, expand3))
    ]
    left, middle, right = operands
    pair = left.times(middle, summed - set(right.labels))
    found = pair.times(right, summed)
    shape = [n for d, n in enumerate(_sizes(rank, operands)) if d not in summed]
    return c.result(c.broadcast(found.laid_out([d for d in range(rank) if d not in summed]), shape))


def _sizes(rank: int, operands: Sequence[_Labelled]) -> list[int]:
    known = {d: n for x in operands for d, n in zip(x.labels, x.value.shape, strict=True)}
    return [known.get(d, 1) for d in range(rank)]


class _Labelled:
    """A tensor whose dimensions have numbers, as the letters of einsum."""

    def __init__(self, c: Context, value: Value, labels: Sequence[int]) -> None:
        self.c = c
        self.value = value
        self.labels = list(labels)

    def times(self, other: _Labelled, summed: set[int]) -> _Labelled:
        """The product, with those dimensions summed."""
        one = self._without(summed - set(other.labels))
        two = other._without(summed - set(self.labels))
        shared = [d for d in one.labels if d in two.labels]
        batch = [d for d in shared if d not in summed]
        inner = [d for d in shared if d in summed]
        free = [d for x in (one, two) for d in x.labels if d not in shared]
        sizes = dict(zip(one.labels + two.labels, one.value.shape + two.value.shape, strict=True))
        shape = tuple(sizes[d] for d in batch + free)
        if 0 in one.value.shape + two.value.shape:
            return _Labelled(self.c, self.c.full(shape, 0, one.value.dtype), batch + free)
        value = self.c.b.dot_general(
            one.value,
            two.value,
            lhs_batch=[one.labels.index(d) for d in batch],
            rhs_batch=[two.labels.index(d) for d in batch],
            lhs_contract=[one.labels.index(d) for d in inner],
            rhs_contract=[two.labels.index(d) for d in inner],
        )
        return _Labelled(self.c, value, batch + free)

    def _without(self, dims: set[int]) -> _Labelled:
        gone = [at for at, d in enumerate(self.labels) if d in dims]
        if not gone:
            return self
        kept = [d for d in self.labels if d not in dims]
        return _Labelled(self.c, self.c.b.reduce_sum(self.value, gone), kept)

    def laid_out(self, order: Sequence[int]) -> Value:
        """The value with these dimensions, of size 1 where it has none."""
        present = [d for d in order if d in self.labels]
        value = self.c.b.transpose(self.value, [self.labels.index(d) for d in present])
        sizes = dict(zip(present, value.shape, strict=True))
        return self.c.reshape(value, [sizes.get(d, 1) for d in order])


@lowering("aten.logcumsumexp.default")
def logcumsumexp(c: Context, x: Value, dim: int) -> Value:
    """The logarithm of the running sum of exponentials along `dim`.

    Carries two numbers, the largest element so far and the logarithm of the sum of exponentials of
    the differences from it, which are added at the end: one rounding, as of ATen's sums in float64.
    """
    if x.dtype.is_complex:
        raise NotLowerable("logcumsumexp of complex numbers")
    if x.rank == 0 or x.size == 0:
        return x
    b, at = c.b, normalize_dim(dim, x.rank)
    found = c.kernels.scan(b, "logsumexp", x, at)
    if found is not None:
        return found
    wide = c.widen(x)
    both: Values = (wide, c.full(wide.shape, 0, wide.dtype))
    # Before the first element the logarithm of the sum is -inf.
    nothing = (-math.inf, -math.inf)
    both = scan_together(c, both, at, nothing, lambda *pair: _joined(c, *pair))
    return c.result(b.add(*both))


def _joined(c: Context, earlier: Values, later: Values) -> Values:
    b = c.b
    (first, one), (second, two) = earlier, later
    largest = b.maximum(first, second)
    one, two = (
        b.add(log, _difference(c, of, largest)) for of, log in ((first, one), (second, two))
    )
    high, low = b.maximum(one, two), b.minimum(one, two)
    return largest, b.add(high, b.log1p(b.exp(_difference(c, low, high))))


def _difference(c: Context, x: Value, y: Value) -> Value:
    """`x - y`, 0 for equal infinities."""
    zero = c.full(x.shape, 0, x.dtype)
    return c.b.select(c.b.compare(x, y, "EQ"), zero, c.b.subtract(x, y))
