"""Factorizations by elimination: Cholesky and LU.

ATen semantics kept: Cholesky reads one triangle; `info` is the order of the first leading minor
that is not positive (Cholesky) or the first pivot that is 0 (LU), counted from 1, else 0; pivots
are LAPACK's: the first of the largest candidates, by |re| + |im|, counted from 1 in int32. A matrix
whose LU has a pivot of 0 is factored to the end. Columns from the failing minor of a Cholesky
factor on hold the triangle that was given.

Cost: the operations of LAPACK, threefold where they are done on masked whole columns; panels of 64
columns are eliminated one by one, the rest is updated by products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT32, Context, OptionalValues
from pjrt_bridge.torch_interop.lowering.linalg import matrices as la
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering

# -- Cholesky -----------------------------------------------------------------------------------


def cholesky(c: Context, a: Value) -> tuple[Value, Value]:
    """The lower factors of matrices of which the lower triangle is read, and info (batch,)."""
    batch, size, _ = a.shape
    info = c.full((batch,), 0, INT32)
    if 0 in a.shape:
        return a, info
    count, width = la.panel_count(size)
    whole = count * width
    a = la.padded(c, la.triangle(c, a, upper=False), whole, whole)
    if whole > size:
        beyond = la.compare_to(c, la.iota(c, a.shape, 1), "GE", size)
        on_diagonal = la.diagonal_relation(c, a.shape, "EQ")
        a = la.where(c, c.b.not_(c.b.and_(beyond, on_diagonal)), a, 1)

    def eliminate(start: Value, factor: Value, info: Value) -> tuple[Value, ...]:
        panel = la.window(c, a, None, start, whole, width)
        if count > 1:
            done = la.window(c, factor, start, None, width, whole)
            panel = c.b.subtract(panel, la.product(c, factor, la.adjoint(c, done)))
        panel, info = _cholesky_panel(c, panel, start, info)
        return la.put(c, factor, panel, None, start), info

    factor, info = la.panels(c, count, (c.full(a.shape, 0, a.dtype), info), eliminate)
    failed = c.b.broadcast_in_dim(info, a.shape, (0,))
    reached = c.b.compare(c.b.add(la.iota(c, a.shape, 2), c.full(a.shape, 1, INT32)), failed, "LT")
    whole_one = la.compare_to(c, failed, "EQ", 0)
    factor = c.b.select(c.b.or_(reached, whole_one), factor, a)
    return la.cropped(c, factor, size, size), info


def _cholesky_panel(c: Context, panel: Value, start: Value, info: Value) -> tuple[Value, Value]:
    """Columns that begin at row `start` of their diagonal: their factor, and info."""
    b = c.b
    batch, _, width = panel.shape

    def column(i: Value, done: Value, info: Value) -> tuple[Value, ...]:
        at = b.add(start, i)
        row = la.window(c, done, at, None, 1, width)
        left = la.product(c, done, la.adjoint(c, row))
        value = b.subtract(la.column_of(c, panel, i), left)
        corner = b.real(la.window(c, value, at, None, 1, 1))
        positive = b.compare(corner, c.full(corner.shape, 0, corner.dtype), "GT")
        root = b.sqrt(corner)
        below = la.iota(c, value.shape, 1)
        scaled = b.divide(value, c.broadcast(la.as_type(c, root, value.dtype), value.shape))
        scaled = la.where(c, la.compare_to(c, below, "GT", at), scaled, 0)
        on = la.compare_to(c, below, "EQ", at)
        scaled = la.where(c, b.not_(on), scaled, la.as_type(c, root, value.dtype))
        minor = b.add(at, la.integer(c, 1))
        fails = b.and_(b.not_(c.reshape(positive, (batch,))), la.compare_to(c, info, "EQ", 0))
        info = b.select(fails, c.broadcast(minor, (batch,)), info)
        return la.put(c, done, scaled, None, i), info

    done, info = la.repeat(c, width, (c.full(panel.shape, 0, panel.dtype), info), column)
    return done, info


@lowering("aten.linalg_cholesky_ex.default")
def cholesky_ex(
    c: Context, a: Value, *, upper: bool = False, check_errors: bool = False
) -> OptionalValues:
    """The factor, upper or lower, and info."""
    la.refuse_check(check_errors)
    matrices = la.batched(c, a)
    if upper:
        matrices = la.adjoint(c, matrices)
    factor, info = cholesky(c, matrices)
    return c.promised(la.adjoint(c, factor) if upper else factor, info)


# -- LU -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LU:
    """`a[order] == lower @ upper`.

    Attributes:
        factors: both triangles in one matrix, (batch, rows, columns).
        pivots: rows that were exchanged, from 1, int32 (batch, min(rows, columns)).
        order: the rows' order, int32 (batch, rows).
        info: int32 (batch,).
    """

    factors: Value
    pivots: Value
    order: Value
    info: Value


def factor(c: Context, a: Value) -> LU:
    """LU with partial pivoting of (batch, rows, columns)."""
    batch, rows, columns = a.shape
    size = min(rows, columns)
    order = la.iota(c, (batch, rows), 1)
    info = c.full((batch,), 0, INT32)
    if 0 in a.shape:
        return LU(a, c.full((batch, size), 0, INT32), order, info)
    count, width = la.panel_count(size)
    high, wide = max(rows, count * width), max(columns, count * width)
    a = la.padded(c, a, high, wide)
    order = la.iota(c, (batch, high, 1), 1)
    pivots = c.full((batch, count * width, 1), 0, INT32)

    def eliminate(start: Value, *state: Value) -> tuple[Value, ...]:
        return _eliminate(c, start, state, width, size)

    a, order, pivots, info = la.panels(c, count, (a, order, pivots, info), eliminate)
    return LU(
        la.cropped(c, a, rows, columns),
        c.reshape(la.cropped(c, pivots, size, 1), (batch, size)),
        c.reshape(la.cropped(c, order, rows, 1), (batch, rows)),
        info,
    )


def _eliminate(
    c: Context, start: Value, state: tuple[Value, ...], width: int, size: int
) -> tuple[Value, ...]:
    """Eliminate one panel of columns, and update the columns right of it."""
    b = c.b
    a, order, pivots, info = state
    batch, high, wide = a.shape
    panel = la.window(c, a, None, start, high, width)
    local = la.iota(c, order.shape, 1)
    steps = b.minimum(la.integer(c, width), b.subtract(la.integer(c, size), start))

    def column(i: Value, *inner: Value) -> tuple[Value, ...]:
        return _eliminate_column(c, start, i, inner)

    panel, local, pivots, info = la.repeat(c, steps, (panel, local, pivots, info), column)
    moved = c.reshape(local, (batch, high))
    if wide > width:
        a = _update(c, start, la.take_rows(c, a, moved), panel)
    return la.put(c, a, panel, None, start), la.take_rows(c, order, moved), pivots, info


def _eliminate_column(
    c: Context, start: Value, i: Value, state: tuple[Value, ...]
) -> tuple[Value, ...]:
    b = c.b
    panel, order, pivots, info = state
    batch = panel.shape[0]
    at = b.add(start, i)
    value = la.column_of(c, panel, i)
    size = b.abs(b.real(value))
    if value.dtype.is_complex:
        size = b.add(size, b.abs(b.imag(value)))
    # BLAS takes a later candidate only where it is larger: a NaN is chosen only as the first.
    counter = la.iota(c, size.shape, 1)
    first = la.compare_to(c, counter, "EQ", at)
    unknown = b.compare(size, size, "NE")
    size = la.where(c, b.not_(b.and_(unknown, first)), size, math.inf)
    candidate = b.and_(la.compare_to(c, counter, "GE", at), b.compare(size, size, "EQ"))
    size = la.where(c, candidate, size, -1)
    largest = b.broadcast_in_dim(b.reduce_max(size, (1, 2)), size.shape, (0,))
    found = b.compare(size, largest, "EQ")
    pivot = c.reshape(la.first_true(c, found, 1), (batch,))
    panel, order = (la.exchanged(c, x, at, pivot) for x in (panel, order))
    counted = b.add(pivot, c.full((batch,), 1, INT32))
    pivots = la.put(c, pivots, c.reshape(counted, (batch, 1, 1)), at, None)
    row = la.window(c, panel, at, None, 1, panel.shape[2])
    value = la.column_of(c, panel, i)
    divisor = la.window(c, row, None, i, 1, 1)
    zero = b.compare(divisor, c.full(divisor.shape, 0, divisor.dtype), "EQ")
    fails = b.and_(c.reshape(zero, (batch,)), la.compare_to(c, info, "EQ", 0))
    info = b.select(fails, c.broadcast(b.add(at, la.integer(c, 1)), (batch,)), info)
    divisor = la.where(c, b.not_(zero), divisor, 1)
    value = b.divide(value, c.broadcast(divisor, value.shape))
    below = la.compare_to(c, la.iota(c, panel.shape, 1), "GT", at)
    column = la.iota(c, panel.shape, 2)
    left = c.broadcast(value, panel.shape)
    reduced = b.subtract(panel, b.multiply(left, c.broadcast(row, panel.shape)))
    here = b.and_(below, la.compare_to(c, column, "EQ", i))
    right = b.and_(below, la.compare_to(c, column, "GT", i))
    panel = b.select(here, left, b.select(right, reduced, panel))
    return panel, order, pivots, info


def _update(c: Context, start: Value, a: Value, panel: Value) -> Value:
    """The columns right of a factored panel, whose rows are in order already."""
    wide, width = a.shape[2], panel.shape[2]
    stop = c.b.add(start, la.integer(c, width))
    corner = la.window(c, panel, start, None, width, width)
    rows = la.window(c, a, start, None, width, wide)
    solved = la.solve_triangle(c, corner, rows, upper=False, unit=True)
    right = la.compare_to(c, la.iota(c, rows.shape, 2), "GE", stop)
    a = la.put(c, a, c.b.select(right, solved, rows), start, None)
    reduced = c.b.subtract(a, la.product(c, panel, solved))
    inside = c.b.and_(
        la.compare_to(c, la.iota(c, a.shape, 1), "GE", stop),
        la.compare_to(c, la.iota(c, a.shape, 2), "GE", stop),
    )
    return c.b.select(inside, reduced, a)


def order_of_pivots(c: Context, pivots: Value, rows: int) -> Value:
    """The order that exchanging row i and row `pivots[:, i] - 1`, i = 0, 1, ..., gives."""
    batch, count = pivots.shape
    order = la.iota(c, (batch, rows, 1), 1)
    if 0 in (batch, rows, count):
        return c.reshape(order, (batch, rows))
    wide = c.reshape(c.cast(pivots, INT32), (batch, count, 1))

    def step(i: Value, order: Value) -> tuple[Value, ...]:
        counted = c.reshape(la.window(c, wide, i, None, 1, 1), (batch,))
        pivot = c.b.subtract(counted, c.full((batch,), 1, INT32))
        return (la.exchanged(c, order, i, pivot),)

    (order,) = la.repeat(c, count, (order,), step)
    return c.reshape(order, (batch, rows))


def permutation(c: Context, order: Value, like: Value) -> Value:
    """The matrices P with `P @ lower @ upper == a`, in the element type of `like`."""
    batch, rows = order.shape
    shape = (batch, rows, rows)
    hit = c.b.compare(la.iota(c, shape, 1), c.b.broadcast_in_dim(order, shape, (0, 2)), "EQ")
    return la.where(c, hit, c.full(shape, 1, like.dtype), 0)


def triangles(c: Context, factors: Value) -> tuple[Value, Value]:
    """The lower factor with its diagonal of ones, and the upper factor."""
    rows, columns = factors.shape[1:]
    size = min(rows, columns)
    lower = la.triangle(c, la.cropped(c, factors, rows, size), upper=False, unit=True)
    return lower, la.triangle(c, la.cropped(c, factors, size, columns), upper=True)


def refuse_unpivoted(pivot: bool) -> None:
    """As in ATen's CPU kernels."""
    if not pivot:
        raise NotLowerable("LU without pivoting is not implemented on the CPU")


@lowering("aten.linalg_lu_factor_ex.default")
def lu_factor_ex(
    c: Context, a: Value, *, pivot: bool = True, check_errors: bool = False
) -> OptionalValues:
    """Both triangles in one matrix, pivots and info."""
    la.refuse_check(check_errors)
    refuse_unpivoted(pivot)
    found = factor(c, la.batched(c, a))
    return c.promised(found.factors, found.pivots, found.info)


@lowering("aten.linalg_lu.default")
def lu(c: Context, a: Value, *, pivot: bool = True) -> OptionalValues:
    """Permutation, lower and upper factor."""
    refuse_unpivoted(pivot)
    found = factor(c, la.batched(c, a))
    return c.promised(permutation(c, found.order, a), *triangles(c, found.factors))


@lowering("aten.lu_unpack.default")
def lu_unpack(
    c: Context,
    factors: Value,
    pivots: Value,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> OptionalValues:
    """Permutation, lower and upper factor; empty where they are not requested."""
    matrices = la.batched(c, factors)
    batch, rows, _ = matrices.shape
    found: list[Value] = [c.zeros(i) for i in range(3)]
    if unpack_pivots:
        lines = c.reshape(pivots, (batch, pivots.shape[-1]))
        found[0] = permutation(c, order_of_pivots(c, lines, rows), factors)
    if unpack_data:
        found[1:] = triangles(c, matrices)
    return c.promised(*found)
