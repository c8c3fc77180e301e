"""Linear systems, inverses and determinants, through triangular factors.

ATen semantics kept: leading dimensions broadcast; a right-hand side may be a vector; a singular
matrix gives infinities or NaN and its `info`; determinants of nothing are 1. For a determinant ATen
factors the transpose of a real row-major matrix (`Context.input_order`), which the factors that it
returns show and which derivatives rely on.
"""

from __future__ import annotations

import math

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT32, Context, MemoryOrder, OptionalValues
from pjrt_bridge.torch_interop.lowering.indexing.reading import broadcast_shapes
from pjrt_bridge.torch_interop.lowering.linalg import matrices as la
from pjrt_bridge.torch_interop.lowering.linalg.factor import LU, factor, order_of_pivots
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering


def solve_factored(c: Context, factors: Value, order: Value, rhs: Value, *, adjoint: bool) -> Value:
    """`x` with `op(a) @ x == rhs`, where `a[order]` has these factors; all of one batch."""
    if 0 in rhs.shape:
        return rhs
    if not adjoint:
        rows = la.take_rows(c, rhs, order)
        half = la.solve_triangle(c, factors, rows, upper=False, unit=True)
        return la.solve_triangle(c, factors, half, upper=True)
    half = la.solve_triangle(c, factors, rhs, upper=True, adjoint=True)
    rows = la.solve_triangle(c, factors, half, upper=False, unit=True, adjoint=True)
    return la.take_rows(c, rows, inverse_order(c, order))


def inverse_order(c: Context, order: Value) -> Value:
    """The order that undoes one, both int32 (batch, rows)."""
    batch, rows = order.shape
    shape = (batch, rows, rows)
    hit = c.b.compare(c.b.broadcast_in_dim(order, shape, (0, 2)), la.iota(c, shape, 1), "EQ")
    return la.first_true(c, hit, 2)


def _widened(c: Context, x: Value, batch: tuple[int, ...]) -> Value:
    """Matrices broadcast to a batch, which becomes one dimension."""
    return la.batched(c, c.broadcast(x, (*batch, *x.shape[-2:])))


# -- LU -----------------------------------------------------------------------------------------


@lowering("aten.linalg_lu_solve.default")
def lu_solve(
    c: Context,
    factors: Value,
    pivots: Value,
    rhs: Value,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> Value:
    """`op(a) @ x == rhs`, or `x @ op(a) == rhs`, by the factors of `a`."""
    batch = broadcast_shapes(factors.shape[:-2], rhs.shape[:-2])
    right = _widened(c, rhs, batch)
    if 0 in right.shape:
        return c.zeros(0)
    matrices = _widened(c, factors, batch)
    lines = c.broadcast(pivots, (*batch, pivots.shape[-1]))
    lines = c.reshape(lines, (math.prod(batch), pivots.shape[-1]))
    order = order_of_pivots(c, lines, factors.shape[-1])
    if left:
        found = solve_factored(c, matrices, order, right, adjoint=adjoint)
    else:
        turned = la.adjoint(c, right)
        found = la.adjoint(c, solve_factored(c, matrices, order, turned, adjoint=not adjoint))
    return c.reshape(found, c.output.shape)


@lowering("aten._linalg_solve_ex.default")
def solve_ex(
    c: Context, a: Value, rhs: Value, *, left: bool = True, check_errors: bool = False
) -> OptionalValues:
    """The solution, the factors of `a`, their pivots and info."""
    la.refuse_check(check_errors)
    found = factor(c, la.batched(c, a))
    vectors = rhs.rank == 1 or (a.rank - 1 == rhs.rank and rhs.shape == a.shape[:-1])
    columns = c.reshape(rhs, (*rhs.shape, 1)) if vectors else rhs
    batch = broadcast_shapes(a.shape[:-2], columns.shape[:-2])
    size = a.shape[-1]
    right = _widened(c, columns, batch)
    if 0 in right.shape:
        return c.promised(c.zeros(0), found.factors, found.pivots, found.info)
    factors = _widened(c, c.reshape(found.factors, a.shape), batch)
    lines = c.reshape(found.order, (*a.shape[:-2], size, 1))
    order = c.reshape(_widened(c, lines, batch), (math.prod(batch), size))
    if left:
        solved = solve_factored(c, factors, order, right, adjoint=False)
    else:
        turned = la.adjoint(c, right)
        solved = la.adjoint(c, solve_factored(c, factors, order, turned, adjoint=True))
    return c.promised(solved, found.factors, found.pivots, found.info)


@lowering("aten.linalg_inv_ex.default")
def inv_ex(c: Context, a: Value, *, check_errors: bool = False) -> OptionalValues:
    """The inverse and info."""
    la.refuse_check(check_errors)
    found = factor(c, la.batched(c, a))
    batch, size, _ = found.factors.shape
    ones = la.identity(c, (batch, size, size), a.dtype)
    solved = solve_factored(c, found.factors, found.order, ones, adjoint=False)
    return c.promised(solved, found.info)


# -- determinants -------------------------------------------------------------------------------


def _exchanges_sign(c: Context, found: LU, like: Value) -> Value:
    """-1 for an odd number of exchanges of rows, else 1; (batch,)."""
    batch, count = found.pivots.shape
    counted = c.b.add(la.iota(c, (batch, count), 1), c.full((batch, count), 1, INT32))
    exchanged = c.b.compare(found.pivots, counted, "NE")
    one = c.full((batch, count), 1, like.dtype)
    return c.b.reduce_prod(c.b.select(exchanged, c.b.negate(one), one), (1,))


def _factored(c: Context, a: Value) -> LU:
    """Factors of the matrix or of its transpose, as ATen has them."""
    matrices = la.batched(c, a)
    if a.dtype.is_complex or a.shape[-1] <= 1 or a.size == 0:
        return factor(c, matrices)
    if c.input_order is MemoryOrder.OTHER:
        return factor(c, matrices)
    return factor(c, la.transposed(c, matrices))


@lowering("aten._linalg_det.default")
def det(c: Context, a: Value) -> OptionalValues:
    """The determinant, the factors of `a` or its transpose, and their pivots."""
    found = _factored(c, a)
    value = c.b.reduce_prod(la.diagonal(c, found.factors), (1,))
    sign = _exchanges_sign(c, found, a)
    return c.promised(c.b.multiply(value, sign), found.factors, found.pivots)


@lowering("aten._linalg_slogdet.default")
def slogdet(c: Context, a: Value) -> OptionalValues:
    """Sign, logarithm of the magnitude, factors of `a` or its transpose, and their pivots.

    A determinant of 0 has sign 0 and logarithm -inf.
    """
    b = c.b
    found = _factored(c, a)
    line = la.diagonal(c, found.factors)
    size = b.abs(line)
    sign = b.multiply(b.reduce_prod(b.sign(line), (1,)), _exchanges_sign(c, found, a))
    return c.promised(sign, b.reduce_sum(b.log(size), (1,)), found.factors, found.pivots)


# -- triangles ----------------------------------------------------------------------------------


@lowering("aten.triangular_solve.default")
def triangular_solve(
    c: Context,
    rhs: Value,
    a: Value,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> OptionalValues:
    """`x` with `op(a) @ x == rhs`, and a copy of `a`; leading dimensions broadcast."""
    batch = broadcast_shapes(a.shape[:-2], rhs.shape[:-2])
    right, matrices = _widened(c, rhs, batch), _widened(c, a, batch)
    if 0 in right.shape:
        return c.promised(right, matrices)
    solved = c.b.triangular_solve(
        matrices,
        right,
        left_side=True,
        lower=not upper,
        unit_diagonal=unitriangular,
        transpose_a="TRANSPOSE" if transpose else "NO_TRANSPOSE",
    )
    return c.promised(solved, matrices)


def _solve_by_cholesky(c: Context, factor: Value, rhs: Value, upper: bool) -> Value:
    half = la.solve_triangle(c, factor, rhs, upper=upper, adjoint=upper)
    return la.solve_triangle(c, factor, half, upper=upper, adjoint=not upper)


@lowering("aten.cholesky.default")
def deprecated_cholesky(c: Context, a: Value, upper: bool = False) -> Value:
    """Refused: it raises where a matrix is not positive definite."""
    raise NotLowerable("torch.cholesky raises an exception that depends on data")


@lowering("aten.cholesky_solve.default", "aten._cholesky_solve_helper.default")
def cholesky_solve(c: Context, rhs: Value, factor: Value, upper: bool = False) -> Value:
    """`x` with `a @ x == rhs`, by the Cholesky factor of `a`; leading dimensions broadcast."""
    batch = broadcast_shapes(factor.shape[:-2], rhs.shape[:-2])
    right, matrices = _widened(c, rhs, batch), _widened(c, factor, batch)
    return c.reshape(_solve_by_cholesky(c, matrices, right, upper), c.output.shape)


@lowering("aten.cholesky_inverse.default")
def cholesky_inverse(c: Context, factor: Value, upper: bool = False) -> Value:
    """The inverse of a matrix by its Cholesky factor."""
    matrices = la.batched(c, factor)
    ones = la.identity(c, matrices.shape, factor.dtype)
    return c.reshape(_solve_by_cholesky(c, matrices, ones, upper), c.output.shape)
