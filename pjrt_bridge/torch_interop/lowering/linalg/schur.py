"""The complex Schur form of square matrices, by shifted QR iterations.

A matrix is reduced to Hessenberg form by reflections, and then to a triangle by rotations (Francis,
1961; Golub and Van Loan, "Matrix Computations", 7.5): each sweep takes Wilkinson's shift from the
last block that is not a triangle yet, and drops what is negligible below the diagonal. Matrices of
a batch are swept together, each with its own block and shift. After 10 sweeps without an eigenvalue
the shift is another one, and after 30 n sweeps it ends with what there is.

Cost: 2 to 3 sweeps for each eigenvalue, of n rotations one after the other: suited to tens of rows,
and to many matrices at once. A matrix that holds infinities or NaN gives NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT32, Context
from pjrt_bridge.torch_interop.lowering.linalg import matrices as la
from pjrt_bridge.torch_interop.lowering.shaping.shape import conjugate, part

_SWEEPS = 30
"""For each row of a matrix."""
_PATIENCE = 10
"""Sweeps without an eigenvalue after which the shift is not Wilkinson's."""


@dataclass(frozen=True)
class Schur:
    """`a == vectors @ triangle @ vectors^H`, both complex, (batch, n, n)."""

    triangle: Value
    vectors: Value


def decompose(c: Context, a: Value) -> Schur:
    """The Schur form of complex (batch, n, n), whose elements are around 1."""
    b = c.b
    batch, size, _ = a.shape
    if size == 1:
        return Schur(a, la.identity(c, a.shape, a.dtype))
    h, z = _hessenberg(c, a)

    def unfinished(state: la.LoopState) -> Value:
        left = la.compare_to(c, b.reduce_max(state[3], (0,)), "GT", 0)
        return b.and_(left, la.compare_to(c, state[0], "LT", _SWEEPS * size))

    def sweep(state: la.LoopState) -> tuple[Value, ...]:
        count, h, z, before, waited = state
        block = _ActiveBlock.of(c, h)
        waited = b.add(waited, c.full((batch,), 1, INT32))
        waited = b.select(b.compare(block.last, before, "EQ"), waited, c.full((batch,), 0, INT32))
        h, z = _swept(c, block.matrix, z, block, _shift(c, block, waited))
        return b.add(count, la.integer(c, 1)), h, z, block.last, waited

    none = c.full((batch,), 0, INT32)
    inits = (la.integer(c, 0), h, z, c.full((batch,), size, INT32), none)
    _, h, z, _, _ = b.while_(inits, unfinished, sweep)
    return Schur(la.triangle(c, h, upper=True), z)


def _hessenberg(c: Context, a: Value) -> tuple[Value, Value]:
    """A similar matrix without elements below its first subdiagonal, and the reflections."""
    b = c.b
    size = a.shape[1]
    z = la.identity(c, a.shape, a.dtype)

    def step(k: Value, h: Value, z: Value) -> tuple[Value, ...]:
        column = la.column_of(c, h, k)
        first = b.add(k, la.integer(c, 1))
        row = la.iota(c, column.shape, 1)
        vector = la.where(c, la.compare_to(c, row, "GE", first), column, 0)
        length = b.sqrt(b.reduce_sum(la.magnitude_squared(c, vector), (1,)))
        length = c.reshape(length, (a.shape[0], 1, 1))
        turned = la.scaled(c, _phase(c, la.window(c, vector, first, None, 1, 1)), length)
        at = la.compare_to(c, row, "EQ", first)
        vector = b.add(vector, la.where(c, at, c.broadcast(turned, vector.shape), 0))
        square = c.reshape(b.reduce_sum(la.magnitude_squared(c, vector), (1,)), length.shape)
        known = b.compare(square, c.full(square.shape, 0, square.dtype), "GT")
        factor = b.divide(c.full(square.shape, 2, square.dtype), la.where(c, known, square, 1))
        scaled = la.scaled(c, vector, la.where(c, known, factor, 0))
        h = b.subtract(h, la.product(c, scaled, la.product(c, la.adjoint(c, vector), h)))
        h, z = (
            b.subtract(x, la.product(c, la.product(c, x, scaled), la.adjoint(c, vector)))
            for x in (h, z)
        )
        return h, z

    h, z = la.repeat(c, max(size - 2, 0), (a, z), step)
    return _cut(c, h), z


def _cut(c: Context, h: Value) -> Value:
    """Zeros where rounding left something below the first subdiagonal."""
    row, column = la.iota(c, h.shape, 1), la.iota(c, h.shape, 2)
    kept = c.b.compare(row, c.b.add(column, c.full(h.shape, 1, INT32)), "LE")
    return la.where(c, kept, h, 0)


def _phase(c: Context, x: Value) -> Value:
    """Complex numbers of magnitude 1 in the direction of these; 1 for 0."""
    size = c.b.abs(x)
    known = c.b.compare(size, c.full(size.shape, 0, size.dtype), "GT")
    return la.where(c, known, la.divided(c, x, la.where(c, known, size, 1)), 1)


@dataclass(frozen=True)
class _ActiveBlock:
    """The last block of each matrix that is not a triangle yet.

    Attributes:
        matrix: without what is negligible below the diagonal.
        first: its first row, (batch,).
        last: its last row; 0 where the whole matrix is a triangle.
    """

    matrix: Value
    first: Value
    last: Value

    @staticmethod
    def of(c: Context, h: Value) -> _ActiveBlock:
        b = c.b
        batch, size, _ = h.shape
        below = b.compare(
            la.iota(c, h.shape, 1), b.add(la.iota(c, h.shape, 2), c.full(h.shape, 1, INT32)), "EQ"
        )
        magnitude = b.abs(h)
        beneath = b.reduce_sum(la.where(c, below, magnitude, 0), (2,))
        own = la.diagonal(c, magnitude)
        # Of each row but the first: its diagonal element and the one above.
        above = b.concatenate([part(c, own, 1, 0, 1), part(c, own, 1, 0, size - 1)], 1)
        bound = b.multiply(
            c.full(own.shape, la.epsilon(h.dtype), own.dtype),
            b.maximum(b.add(own, above), c.full(own.shape, la.epsilon(h.dtype), own.dtype)),
        )
        kept = b.compare(beneath, bound, "GT")
        clean = b.and_(below, b.not_(b.broadcast_in_dim(kept, h.shape, (0, 1))))
        row = b.iota((batch, size), 1, INT32)
        last = b.reduce_max(la.where(c, kept, row, 0), (1,))
        inner = b.compare(row, b.broadcast_in_dim(last, row.shape, (0,)), "LE")
        starts = b.and_(inner, b.not_(kept))
        first = b.reduce_max(la.where(c, starts, row, 0), (1,))
        return _ActiveBlock(la.where(c, b.not_(clean), h, 0), first, last)


def _shift(c: Context, block: _ActiveBlock, waited: Value) -> Value:
    """The eigenvalue of each block's last two rows that is nearer to its last element."""
    b = c.b
    h = block.matrix
    batch = h.shape[0]
    none, one = (c.full((batch,), number, INT32) for number in (0, 1))
    before = b.maximum(b.subtract(block.last, one), none)

    def element(row: Value, column: Value) -> Value:
        at = b.and_(
            b.compare(la.iota(c, h.shape, 1), b.broadcast_in_dim(row, h.shape, (0,)), "EQ"),
            b.compare(la.iota(c, h.shape, 2), b.broadcast_in_dim(column, h.shape, (0,)), "EQ"),
        )
        return b.reduce_sum(la.where(c, at, h, 0), (1, 2))

    upper, corner = element(before, before), element(block.last, block.last)
    below = element(block.last, before)
    product = b.multiply(element(before, block.last), below)
    half = la.divided(c, b.subtract(upper, corner), c.full((batch,), 2, la.real_type(h.dtype)))
    root = b.sqrt(b.add(b.multiply(half, half), product))
    plus, minus = b.add(half, root), b.subtract(half, root)
    divisor = b.select(b.compare(b.abs(plus), b.abs(minus), "GE"), plus, minus)
    size = b.abs(divisor)
    known = b.compare(size, c.full(size.shape, 0, size.dtype), "GT")
    change = b.divide(product, la.where(c, known, divisor, 1))
    near = b.subtract(corner, la.where(c, known, change, 0))
    far = b.add(corner, la.as_type(c, b.abs(below), h.dtype))
    turn = b.remainder(waited, c.full((batch,), _PATIENCE, INT32))
    return b.select(la.compare_to(c, turn, "EQ", _PATIENCE - 1), far, near)


def _swept(
    c: Context, h: Value, z: Value, block: _ActiveBlock, shift: Value
) -> tuple[Value, Value]:
    """One sweep of rotations through each block."""
    b = c.b
    batch, size, _ = h.shape
    begin, end = b.reduce_min(block.first, (0,)), b.reduce_max(block.last, (0,))

    def rotate(i: Value, h: Value, z: Value) -> tuple[Value, ...]:
        k = b.add(begin, i)
        active = b.and_(
            la.compare_to(c, block.first, "LE", k), la.compare_to(c, block.last, "GT", k)
        )
        starts = c.reshape(la.compare_to(c, block.first, "EQ", k), (batch, 1, 1))
        rows = la.window(c, h, k, None, 2, size)
        own = la.window(c, rows, None, k, 2, 1)
        top = la.compare_to(c, la.iota(c, own.shape, 1), "EQ", 0)
        shifted = b.subtract(own, c.broadcast(c.reshape(shift, (batch, 1, 1)), own.shape))
        own = b.select(top, shifted, own)
        # Where the block begins at row 0 there is no column before, and it is not taken.
        bulge = la.window(c, rows, None, b.subtract(k, la.integer(c, 1)), 2, 1)
        pair = b.select(c.broadcast(starts, own.shape), own, bulge)
        x, y = _rotation(c, pair, c.reshape(active, (batch, 1, 1)))
        kept = b.concatenate([conjugate(c, x), x], 1)
        crossed = b.concatenate([conjugate(c, y), b.negate(y)], 1)
        h = la.put(c, h, _combined(c, rows, kept, crossed, 1), k, None)
        kept, crossed = (conjugate(c, la.transposed(c, v)) for v in (kept, crossed))
        for_columns = []
        for matrix in (h, z):
            columns = la.window(c, matrix, None, k, size, 2)
            for_columns.append(la.put(c, matrix, _combined(c, columns, kept, crossed, 2), None, k))
        return tuple(for_columns)

    h, z = la.repeat(c, b.subtract(end, begin), (h, z), rotate)
    return _cut(c, h), z


def _combined(c: Context, pair: Value, kept: Value, crossed: Value, dim: int) -> Value:
    """Two rows or columns, each times a number plus the other one times a number."""
    b = c.b
    return b.add(
        b.multiply(pair, c.broadcast(kept, pair.shape)),
        b.multiply(b.reverse(pair, (dim,)), c.broadcast(crossed, pair.shape)),
    )


def _rotation(c: Context, pair: Value, active: Value) -> tuple[Value, Value]:
    """`x`, `y` such that `[[conj(x), conj(y)], [-y, x]] @ pair` is (length, 0); else 1, 0."""
    b = c.b
    size = b.abs(pair)
    largest = c.reshape(b.reduce_max(size, (1,)), active.shape)
    known = b.and_(active, b.compare(largest, c.full(largest.shape, 0, largest.dtype), "GT"))
    unit = la.divided(c, pair, la.where(c, known, largest, 1))
    square = c.reshape(b.reduce_sum(la.magnitude_squared(c, unit), (1,)), active.shape)
    unit = la.divided(c, unit, la.where(c, known, b.sqrt(square), 1))
    x, y = part(c, unit, 1, 0, 1), part(c, unit, 1, 1, 2)
    return la.where(c, known, x, 1), la.where(c, known, y, 0)
