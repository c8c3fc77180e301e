"""Reductions over the last dimensions in a form that XLA's CPU compiler vectorizes.

The compiler reduces a row element by element, in order, because rounding depends on the order;
columns it reduces in parallel. So a row is reshaped to a matrix of a few columns: these are reduced
first, then their results. A barrier keeps the compiler from merging both reductions. Sums are as
exact as its own, which are pairwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pjrt_bridge.stablehlo import Builder, Order, Value, memory_order
from pjrt_bridge.stablehlo.kernels import Kernels, Reduction

_COLUMNS = ((128, 32), (64, 16), (16, 8))
"""From which length of a row on how many columns are used, of elements of at most 32 bits."""

_LONGEST = 256
"""Rows of a part of columns that are reduced one after the other."""

_WORDS = 8
"""The columns of 64-bit elements."""


class BlockedReductions(Kernels):
    """Reductions of rows by columns."""

    def reduce(self, b: Builder, reduction: Reduction, x: Value, dims: Sequence[int]) -> Value:
        """See `Kernels.reduce`."""
        order = memory_order(x)
        if order != tuple(range(x.rank)):
            return self._in_order(b, reduction, x, dims, order)
        first = x.rank
        while first - 1 in dims:
            first -= 1
        rows, length = x.shape[:first], math.prod(x.shape[first:])
        columns = _columns(x, reduction, length)
        if not columns or x.size == 0:
            return super().reduce(b, reduction, x, dims)
        # Other dimensions are reduced last, after the contiguous ones.
        others = (*(dim for dim in dims if dim < first), first)
        flat = b.reshape(x, (*rows, length))
        whole = length - length % columns
        start, end = (0,) * first, (*rows, length)
        body = flat
        if whole < length:
            body = b.slice(flat, (*start, 0), (*rows, whole))
        blocks = b.reshape(body, (*rows, whole // columns, columns))
        (partial,) = b.optimization_barrier([super().reduce(b, reduction, blocks, (first,))])
        result = super().reduce(b, reduction, partial, others)
        if whole == length:
            return result
        rest = super().reduce(b, reduction, b.slice(flat, (*start, whole), end), others)
        return _combine(b, reduction)(result, rest)

    def _in_order(
        self, b: Builder, reduction: Reduction, x: Value, dims: Sequence[int], order: Order
    ) -> Value:
        """A reduction of a value whose dimensions lie in another order in memory.

        It is turned to that order, which costs nothing, and columns are reduced in parts, so that
        sums stay exact.
        """
        kept = [dim for dim in order if dim not in dims]
        laid = b.transpose(x, order)
        places = [place for place, dim in enumerate(order) if dim in dims]
        count = len(places)
        rows = math.prod(laid.shape[:count])
        part = _part(rows) if places == list(range(count)) else 0
        if part:
            shape = (rows // part, part, *laid.shape[count:])
            sums = super().reduce(b, reduction, b.reshape(laid, shape), (1,))
            (sums,) = b.optimization_barrier([sums])
            found = super().reduce(b, reduction, sums, (0,))
        else:
            found = self.reduce(b, reduction, laid, places)
        return b.transpose(found, [kept.index(dim) for dim in sorted(kept)])


def _part(rows: int) -> int:
    """The rows of a part, where they are divided into parts of one length; 0 where they are not."""
    found = next((part for part in range(_LONGEST, 1, -1) if rows % part == 0), 0)
    return found if found < rows else 0


def _columns(x: Value, reduction: Reduction, length: int) -> int:
    """How many columns are used for a row; 0 where the compiler is as fast without."""
    kind = x.dtype
    if kind.is_complex or not (kind.is_bool or kind.bits in (8, 16, 32, 64)):
        return 0
    if kind.bits == 64:
        return 0 if length < _COLUMNS[-1][0] or reduction in ("sum", "prod") else _WORDS
    return next((columns for least, columns in _COLUMNS if length >= least), 0)


def _combine(b: Builder, reduction: Reduction) -> Callable[[Value, Value], Value]:
    combines: dict[Reduction, Callable[[Value, Value], Value]] = {
        "sum": b.add,
        "prod": b.multiply,
        "max": b.maximum,
        "min": b.minimum,
        "and": b.and_,
        "or": b.or_,
    }
    return combines[reduction]
