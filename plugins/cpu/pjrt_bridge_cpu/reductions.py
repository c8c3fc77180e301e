"""Reductions in a form that XLA's CPU compiler vectorizes, and fuses with what computes the values.

The compiler reduces a row element by element, in order, because rounding depends on the order;
columns it reduces in parallel. So a row is reshaped to a matrix of a few columns: these are reduced
first, then their results. Of more than 32 numbers it makes windows, which it does not fuse: all
that is reduced would be written to memory. So columns are reduced in parts. A barrier keeps the
compiler from merging these reductions. Sums are as exact as its own, which are pairwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, Value, memory_order
from pjrt_bridge.stablehlo.kernel_attributes import Reduction
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.position_kernels import combination
from pjrt_bridge_cpu.reduced_expressions import ReducedExpressions
from pjrt_bridge_cpu.totals import totalled

_FLOAT32, _NARROW = dtypes.of("float32"), (dtypes.of("bfloat16"), dtypes.of("float16"))

_COLUMNS = ((128, 32), (64, 16), (16, 8))
"""From which length of a row on how many columns are used, of elements of at most 32 bits."""

_PART = 16
"""Rows of a part of columns, where they can be chosen."""

_WINDOW = 32
"""Rows of which the compiler makes no windows."""

_LEAST = 1 << 13
"""Elements from which on columns are reduced in parts: fewer take less time than another loop."""

_WORDS = 8
"""The columns of 64-bit elements."""


class BlockedReductions(ReducedExpressions):
    """Reductions of rows by columns, and of columns in parts.

    Attributes:
        can_total: the client's plugin makes the custom call of `totals.py`.
    """

    can_total = False

    def reduce(self, b: Builder, reduction: Reduction, x: Value, dims: Sequence[int]) -> Value:
        """See `Kernels.reduce`."""
        if reduction in ("max", "min") and x.dtype in _NARROW:
            # Each comparison would be rounded again, one number at a time. None of these rounds.
            found = self.reduce(b, reduction, b.convert(x, _FLOAT32), dims)
            return b.convert(found, x.dtype)
        order = memory_order(x)
        if order != tuple(range(x.rank)):
            # Turned to that order, which costs nothing.
            kept = [dim for dim in order if dim not in dims]
            places = [place for place, dim in enumerate(order) if dim in dims]
            found = self.reduce(b, reduction, b.transpose(x, order), places)
            return b.transpose(found, [kept.index(dim) for dim in sorted(kept)])
        total = totalled(b, reduction, x, dims) if self.can_total else None
        if total is not None:
            return total
        if self.reduces_last(reduction, x):
            return Kernels.reduce(self, b, reduction, x, dims)
        return self.reduce_in_parts(b, reduction, x, dims)

    def reduce_in_parts(
        self, b: Builder, reduction: Reduction, x: Value, dims: Sequence[int]
    ) -> Value:
        """See `Kernels.reduce_in_parts`."""
        first = x.rank
        while first - 1 in dims:
            first -= 1
        rows, length = x.shape[:first], math.prod(x.shape[first:])
        columns = _columns(x, reduction, length)
        if not columns or x.size == 0:
            return self._down(b, reduction, x, dims)
        # Other dimensions are reduced last, after the contiguous ones.
        others = (*(dim for dim in dims if dim < first), first)
        flat = b.reshape(x, (*rows, length))
        count = length // columns
        part = count if count <= _WINDOW else _part(count, 1) or _PART
        whole = count // part * part * columns
        start, end = (0,) * first, (*rows, length)
        body = flat
        if whole < length:
            body = b.slice(flat, (*start, 0), (*rows, whole))
        blocks = b.reshape(body, (*rows, count // part, part, columns))
        (partial,) = b.optimization_barrier(
            [Kernels.reduce(self, b, reduction, blocks, (first + 1,))]
        )
        result = Kernels.reduce(self, b, reduction, partial, (*others, first + 1))
        if whole == length:
            return result
        rest = Kernels.reduce(self, b, reduction, b.slice(flat, (*start, whole), end), others)
        return combination(b, reduction)(result, rest)

    def _down(self, b: Builder, reduction: Reduction, x: Value, dims: Sequence[int]) -> Value:
        """A reduction of a row-major value along columns: the last of the dimensions in parts."""
        end = max(dims, default=0)
        begin = end
        while begin - 1 in dims:
            begin -= 1
        rows = math.prod(x.shape[begin : end + 1])
        # The compiler would merge the loops over parts and over their results, if it made no
        # windows of these.
        divides = end < x.rank - 1 and x.size >= _LEAST
        part = _part(rows, _WINDOW + 1) if divides and dims else 0
        if not part:
            return Kernels.reduce(self, b, reduction, x, dims)
        shape = (*x.shape[:begin], rows // part, part, *x.shape[end + 1 :])
        sums = Kernels.reduce(self, b, reduction, b.reshape(x, shape), (begin + 1,))
        (sums,) = b.optimization_barrier([sums])
        return Kernels.reduce(
            self, b, reduction, sums, (*(dim for dim in dims if dim < begin), begin)
        )


def _part(rows: int, least: int) -> int:
    """The rows of a part, if they can be divided into at least so many of one length; else 0."""
    found = (part for part in range(4, _WINDOW + 1) if rows % part == 0 and rows // part >= least)
    return min(found, key=lambda part: abs(part - _PART), default=0)


def _columns(x: Value, reduction: Reduction, length: int) -> int:
    """How many columns are used for a row; 0 where the compiler is as fast without."""
    kind = x.dtype
    if kind.is_complex or not (kind.is_bool or kind.bits in (8, 16, 32, 64)):
        return 0
    if kind.bits == 64:
        return 0 if length < _COLUMNS[-1][0] or reduction in ("sum", "prod") else _WORDS
    return next((columns for least, columns in _COLUMNS if length >= least), 0)
