"""Building blocks of dense linear algebra: matrices in batches, loops, triangles, permutations.

All work on values of three dimensions, (batch, rows, columns), in LAPACK's four element types.
Loops over rows, columns or panels are StableHLO `while` loops, so that a program does not grow with
the matrix. Products ask for the highest precision: factorizations amplify rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import ml_dtypes

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.builder.elementwise import Direction
from pjrt_bridge.torch_interop.lowering.context import INT32, Context, Scalar
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from pjrt_bridge.torch_interop.lowering.shaping.shape import conjugate, part

PANEL = 64
"""Columns that blocked factorizations take at a time; narrower matrices are one panel."""

LoopState = tuple[Value, ...]


def real_type(dtype: DType) -> DType:
    """The type of a magnitude."""
    return dtypes.of(f"float{dtype.bits // 2}") if dtype.is_complex else dtype


def epsilon(dtype: DType) -> float:
    """The distance from 1 to the next number."""
    return float(ml_dtypes.finfo(real_type(dtype).numpy).eps)  # type: ignore[no-untyped-call]


def smallest(dtype: DType) -> float:
    """The smallest normal number."""
    return float(ml_dtypes.finfo(real_type(dtype).numpy).tiny)  # type: ignore[no-untyped-call]


def batched(c: Context, x: Value) -> Value:
    """Matrices with all leading dimensions as one."""
    return c.reshape(x, (math.prod(x.shape[:-2]), *x.shape[-2:]))


def refuse_check(check_errors: bool) -> None:
    """Refuse `check_errors`: only the host can raise an exception that depends on data."""
    if check_errors:
        raise NotLowerable("check_errors=True raises an exception that depends on data")


# -- loops --------------------------------------------------------------------------------------


def integer(c: Context, value: int) -> Value:
    """A 0-d int32."""
    return c.full((), value, INT32)


def repeat(
    c: Context, count: int | Value, state: Sequence[Value], body: Callable[..., Sequence[Value]]
) -> LoopState:
    """`for i in range(count): state = body(i, *state)`, with i as a 0-d int32."""
    limit = integer(c, count) if isinstance(count, int) else count

    def step(carried: LoopState) -> Sequence[Value]:
        return (c.b.add(carried[0], integer(c, 1)), *body(*carried))

    inits = (integer(c, 0), *state)
    return c.b.while_(inits, lambda carried: c.b.compare(carried[0], limit, "LT"), step)[1:]


def panels(
    c: Context, count: int, state: Sequence[Value], body: Callable[..., Sequence[Value]]
) -> LoopState:
    """`for i in range(count): state = body(i * width, *state)`; a single panel needs no loop."""
    if count == 1:
        return tuple(body(integer(c, 0), *state))

    def step(i: Value, *carried: Value) -> Sequence[Value]:
        return body(c.b.multiply(i, integer(c, PANEL)), *carried)

    return repeat(c, count, state, step)


def panel_count(columns: int) -> tuple[int, int]:
    """How many panels so many columns are, and how many columns each has."""
    return (1, columns) if columns <= PANEL else (-(-columns // PANEL), PANEL)


# -- parts --------------------------------------------------------------------------------------


def window(c: Context, x: Value, row: Value | None, column: Value | None, *sizes: int) -> Value:
    """`x[:, row : row + sizes[0], column : column + sizes[1]]`; None starts at 0."""
    zero = integer(c, 0)
    starts = [zero, row or zero, column or zero]
    return c.b.dynamic_slice(x, starts, (x.shape[0], *sizes))


def put(c: Context, x: Value, new: Value, row: Value | None, column: Value | None) -> Value:
    """`x` with `new` written over it from that position on."""
    zero = integer(c, 0)
    return c.b.dynamic_update_slice(x, new, [zero, row or zero, column or zero])


def column_of(c: Context, x: Value, at: Value) -> Value:
    """One column, (batch, rows, 1)."""
    return window(c, x, None, at, x.shape[1], 1)


def padded(c: Context, x: Value, rows: int, columns: int) -> Value:
    """`x` with zeros below and to the right, up to so many rows and columns."""
    if x.shape[1:] == (rows, columns):
        return x
    high = (0, rows - x.shape[1], columns - x.shape[2])
    return c.b.pad(x, c.full((), 0, x.dtype), (0, 0, 0), high)


def cropped(c: Context, x: Value, rows: int, columns: int) -> Value:
    """The first rows and columns."""
    return part(c, part(c, x, 1, 0, rows), 2, 0, columns)


def iota(c: Context, shape: Sequence[int], dim: int, first: Value | None = None) -> Value:
    """int32 numbers that count from `first` (or 0) along a dimension."""
    counter = c.b.iota(tuple(shape), dim, INT32)
    return counter if first is None else c.b.add(counter, c.broadcast(first, shape))


def compare_to(c: Context, x: Value, relation: Direction, bound: Value | int) -> Value:
    """Comparison of int32 numbers with one number."""
    other = integer(c, bound) if isinstance(bound, int) else bound
    return c.b.compare(x, c.broadcast(other, x.shape), relation)


def diagonal_relation(c: Context, shape: Sequence[int], relation: Direction) -> Value:
    """Where row and column number are related: GE is the lower triangle, EQ the diagonal."""
    return c.b.compare(iota(c, shape, 1), iota(c, shape, 2), relation)


def where(c: Context, condition: Value, x: Value, other: Value | Scalar) -> Value:
    """`x` where the condition holds, else the other, which may be a number."""
    shape = x.shape
    given = c.broadcast(other, shape) if isinstance(other, Value) else c.full(shape, other, x.dtype)
    return c.b.select(c.broadcast(condition, shape), x, given)


def triangle(c: Context, x: Value, *, upper: bool, unit: bool = False) -> Value:
    """One triangle, zeros elsewhere; with a diagonal of ones if `unit`."""
    x = where(c, diagonal_relation(c, x.shape, "LE" if upper else "GE"), x, 0)
    return where(c, diagonal_relation(c, x.shape, "NE"), x, 1) if unit else x


def identity(c: Context, shape: Sequence[int], dtype: DType) -> Value:
    """Ones on the diagonals of (batch, rows, columns)."""
    ones = c.full(shape, 1, dtype)
    return where(c, diagonal_relation(c, ones.shape, "EQ"), ones, 0)


def diagonal(c: Context, x: Value) -> Value:
    """The diagonals, (batch, min(rows, columns))."""
    size = min(x.shape[1:])
    square = cropped(c, x, size, size)
    kept = where(c, diagonal_relation(c, square.shape, "EQ"), square, 0)
    return c.b.reduce_sum(kept, (2,))


# -- products -----------------------------------------------------------------------------------


def transposed(c: Context, x: Value) -> Value:
    """Rows and columns exchanged."""
    return c.b.transpose(x, (0, 2, 1))


def adjoint(c: Context, x: Value) -> Value:
    """Rows and columns exchanged, conjugated."""
    return conjugate(c, transposed(c, x))


def product(c: Context, x: Value, y: Value) -> Value:
    """Matrix product; 0 where the summed dimension is empty."""
    if 0 in (*x.shape, *y.shape):
        return c.full((x.shape[0], x.shape[1], y.shape[2]), 0, x.dtype)
    return c.b.dot_general(
        x,
        y,
        lhs_batch=(0,),
        rhs_batch=(0,),
        lhs_contract=(2,),
        rhs_contract=(1,),
        precision="HIGHEST",
    )


def magnitude_squared(c: Context, x: Value) -> Value:
    """|x|^2, real."""
    if not x.dtype.is_complex:
        return c.b.multiply(x, x)
    real, imag = c.b.real(x), c.b.imag(x)
    return c.b.add(c.b.multiply(real, real), c.b.multiply(imag, imag))


def as_type(c: Context, x: Value, dtype: DType) -> Value:
    """A real value as real or complex."""
    return x if x.dtype == dtype else c.b.complex_(x, c.full(x.shape, 0, x.dtype))


def scaled(c: Context, x: Value, factor: Value) -> Value:
    """`x` times a factor that broadcasts to it; real factors scale complex values."""
    return c.b.multiply(x, c.broadcast(as_type(c, factor, x.dtype), x.shape))


def divided(c: Context, x: Value, divisor: Value) -> Value:
    """`x` by a divisor that broadcasts to it; real ones divide complex values."""
    return c.b.divide(x, c.broadcast(as_type(c, divisor, x.dtype), x.shape))


def solve_triangle(
    c: Context, a: Value, rhs: Value, *, upper: bool, unit: bool = False, adjoint: bool = False
) -> Value:
    """`x` with `op(a) @ x == rhs`, of whose `a` one triangle is read."""
    if 0 in rhs.shape:
        return rhs
    return c.b.triangular_solve(
        a,
        rhs,
        left_side=True,
        lower=not upper,
        unit_diagonal=unit,
        transpose_a="ADJOINT" if adjoint else "NO_TRANSPOSE",
    )


# -- order --------------------------------------------------------------------------------------


def first_true(c: Context, found: Value, dim: int) -> Value:
    """The first position along a dimension, which is dropped; its size where there is none."""
    beyond = c.full(found.shape, found.shape[dim], INT32)
    return c.b.reduce_min(c.b.select(found, iota(c, found.shape, dim), beyond), (dim,))


def take_rows(c: Context, x: Value, order: Value) -> Value:
    """`x[b, order[b, i], :]` for int32 positions (batch, count)."""
    if 0 in x.shape or 0 in order.shape:
        return c.full((x.shape[0], order.shape[1], x.shape[2]), 0, x.dtype)
    return c.b.gather(
        x,
        c.reshape(order, (*order.shape, 1)),
        offset_dims=[2],
        collapsed_slice_dims=[1],
        start_index_map=[1],
        operand_batching_dims=[0],
        start_indices_batching_dims=[0],
        index_vector_dim=2,
        slice_sizes=[1, 1, x.shape[2]],
    )


def exchanged(c: Context, x: Value, first: Value, second: Value) -> Value:
    """`x` (batch, rows, columns) with row `first` (0-d) and row `second` (batch,) exchanged."""
    counter = iota(c, x.shape, 1)
    at_first = compare_to(c, counter, "EQ", first)
    at_second = c.b.compare(counter, c.b.broadcast_in_dim(second, x.shape, (0,)), "EQ")

    def row(chosen: Value) -> Value:
        # A sum of one element: cheaper than a gather for each of many steps.
        kept = where(c, chosen, x, 0)
        total = c.b.reduce_sum(kept, (1,))
        return c.b.broadcast_in_dim(total, x.shape, (0, 2))

    upper, lower = row(at_first), row(at_second)
    return c.b.select(at_first, lower, c.b.select(at_second, upper, x))
