"""Householder reflectors: QR, and products with the orthogonal factor.

ATen semantics kept: reflectors are LAPACK's, `H = 1 - tau v v^H` with `v[i] = 1` at its own row and
zeros before, below the diagonal of R; the diagonal of R is real with the sign that avoids
cancellation; a column that is zero below its diagonal has `tau` 0. Norms are scaled, so that
squares neither overflow nor vanish.

Panels of 64 reflectors are applied as `1 - V T V^H` (the compact WY form).
"""

from __future__ import annotations

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context, OptionalValues
from pjrt_bridge.torch_interop.lowering.linalg import matrices as la
from pjrt_bridge.torch_interop.lowering.registry import lowering
from pjrt_bridge.torch_interop.lowering.shaping.shape import conjugate


def factor(c: Context, a: Value) -> tuple[Value, Value]:
    """R with the reflectors below it, and their factors (batch, min(rows, columns))."""
    batch, rows, columns = a.shape
    size = min(rows, columns)
    if 0 in a.shape:
        return a, c.full((batch, size), 0, a.dtype)
    count, width = la.panel_count(size)
    high, wide = max(rows, count * width), max(columns, count * width)
    scales = c.full((batch, count * width, 1), 0, a.dtype)

    def eliminate(start: Value, a: Value, scales: Value) -> tuple[Value, ...]:
        panel = la.window(c, a, None, start, high, width)
        steps = c.b.minimum(la.integer(c, width), c.b.subtract(la.integer(c, size), start))
        panel, scales = la.repeat(
            c, steps, (panel, scales), lambda i, *state: _eliminate_column(c, start, i, *state)
        )
        if wide > width:
            chosen = la.window(c, scales, start, None, width, 1)
            reduced = _reflect(c, _reflectors(c, panel, start), chosen, a, adjoint=True)
            stop = c.b.add(start, la.integer(c, width))
            right = la.compare_to(c, la.iota(c, a.shape, 2), "GE", stop)
            a = c.b.select(right, reduced, a)
        return la.put(c, a, panel, None, start), scales

    a, scales = la.panels(c, count, (la.padded(c, a, high, wide), scales), eliminate)
    return (
        la.cropped(c, a, rows, columns),
        c.reshape(la.cropped(c, scales, size, 1), (batch, size)),
    )


def _eliminate_column(
    c: Context, start: Value, i: Value, panel: Value, scales: Value
) -> tuple[Value, ...]:
    """LAPACK's larfg for one column, and its reflection of the columns right of it."""
    b = c.b
    at = b.add(start, i)
    value = la.column_of(c, panel, i)
    below = la.compare_to(c, la.iota(c, value.shape, 1), "GT", at)
    tail = la.where(c, below, value, 0)
    alpha = la.window(c, value, at, None, 1, 1)
    rest = _norm(c, tail, (1, 2))
    rest = c.reshape(rest, alpha.shape)
    length = _hypotenuse(c, rest, b.abs(alpha))
    real = b.real(alpha)
    negative = b.compare(real, c.full(real.shape, 0, real.dtype), "LT")
    beta = b.select(negative, length, b.negate(length))
    idle = b.compare(rest, c.full(rest.shape, 0, rest.dtype), "EQ")
    if alpha.dtype.is_complex:
        imag = b.imag(alpha)
        idle = b.and_(idle, b.compare(imag, c.full(imag.shape, 0, imag.dtype), "EQ"))
    beta = b.select(idle, real, beta)
    wide_beta = la.as_type(c, la.where(c, b.not_(idle), beta, 1), alpha.dtype)
    tau = la.where(c, b.not_(idle), b.divide(b.subtract(wide_beta, alpha), wide_beta), 0)
    divisor = la.where(c, b.not_(idle), b.subtract(alpha, wide_beta), 1)
    vector = b.divide(tail, c.broadcast(divisor, tail.shape))
    on = la.compare_to(c, la.iota(c, value.shape, 1), "EQ", at)
    reflector = la.where(c, b.not_(on), vector, 1)
    shares = la.product(c, la.adjoint(c, reflector), panel)
    change = b.multiply(
        c.broadcast(reflector, panel.shape),
        c.broadcast(la.scaled(c, shares, conjugate(c, tau)), panel.shape),
    )
    column = la.iota(c, panel.shape, 2)
    reduced = la.where(c, la.compare_to(c, column, "GT", i), b.subtract(panel, change), panel)
    beyond = la.where(c, b.not_(below), value, vector)
    kept = la.where(c, b.not_(on), beyond, la.as_type(c, beta, alpha.dtype))
    return la.put(c, reduced, kept, None, i), la.put(c, scales, tau, at, None)


def _norm(c: Context, x: Value, dims: tuple[int, ...]) -> Value:
    """The 2-norm over dimensions, which are dropped."""
    b = c.b
    size = b.abs(x)
    largest = b.reduce_max(size, dims)
    usable = b.and_(
        b.compare(largest, c.full(largest.shape, 0, largest.dtype), "NE"),
        b.is_finite(largest),
    )
    unit = la.where(c, usable, largest, 1)
    part = b.divide(size, c.spread(unit, size.shape, dims))
    return b.multiply(unit, b.sqrt(b.reduce_sum(b.multiply(part, part), dims)))


def _hypotenuse(c: Context, x: Value, y: Value) -> Value:
    b = c.b
    long, short = b.maximum(x, y), b.minimum(x, y)
    zero = b.compare(long, c.full(long.shape, 0, long.dtype), "EQ")
    ratio = b.divide(short, la.where(c, b.not_(zero), long, 1))
    one = c.full(long.shape, 1, long.dtype)
    return b.multiply(long, b.sqrt(b.add(one, b.multiply(ratio, ratio))))


def _reflectors(c: Context, panel: Value, start: Value) -> Value:
    """The vectors below the diagonal that begins at row `start`, with their ones and zeros."""
    column = la.iota(c, panel.shape, 2, start)
    row = la.iota(c, panel.shape, 1)
    below = la.where(c, c.b.compare(row, column, "GT"), panel, 0)
    return la.where(c, c.b.compare(row, column, "NE"), below, 1)


def _reflect(c: Context, vectors: Value, scales: Value, x: Value, *, adjoint: bool) -> Value:
    """`H_1 H_2 ... x`, or the adjoint of these on x; (batch, count, 1) factors.

    `T` is upper triangular with `T^-1 = diag(1 / tau) + U`, `U` the strictly upper triangle of
    `V^H V`; without a division, `(1 + diag(tau) U) T = diag(tau)`.
    """
    b = c.b
    gram = la.product(c, la.adjoint(c, vectors), vectors)
    above = la.where(c, la.diagonal_relation(c, gram.shape, "LT"), gram, 0)
    factors = c.broadcast(scales, gram.shape)
    coupled = b.multiply(factors, above)
    shares = la.product(c, la.adjoint(c, vectors), x)
    if adjoint:
        solved = la.solve_triangle(c, coupled, shares, upper=True, unit=True, adjoint=True)
        shares = b.multiply(c.broadcast(conjugate(c, scales), solved.shape), solved)
    else:
        weighted = b.multiply(c.broadcast(scales, shares.shape), shares)
        shares = la.solve_triangle(c, coupled, weighted, upper=True, unit=True)
    return b.subtract(x, la.product(c, vectors, shares))


def apply(c: Context, a: Value, scales: Value, x: Value, *, adjoint: bool) -> Value:
    """`Q @ x`, or `Q^H @ x`, for the reflectors below the diagonal of `a`.

    Args:
        c: the node's context.
        a: (batch, rows, columns), its first columns hold one reflector each.
        scales: (batch, count).
        x: (batch, rows, any).
        adjoint: which of the two.
    """
    batch, rows, _ = a.shape
    size = scales.shape[1]
    if 0 in (batch, rows, size, x.shape[2]):
        return x
    count, width = la.panel_count(size)
    high = max(rows, count * width)
    vectors = la.padded(c, la.cropped(c, a, rows, size), high, count * width)
    factors = la.padded(c, c.reshape(scales, (batch, size, 1)), count * width, 1)
    last = la.integer(c, (count - 1) * width)

    def one(start: Value, x: Value) -> tuple[Value, ...]:
        at = start if adjoint else c.b.subtract(last, start)
        panel = la.window(c, vectors, None, at, high, width)
        chosen = la.window(c, factors, at, None, width, 1)
        return (_reflect(c, _reflectors(c, panel, at), chosen, x, adjoint=adjoint),)

    (x,) = la.panels(c, count, (la.padded(c, x, high, x.shape[2]),), one)
    return la.cropped(c, x, rows, x.shape[2])


def orthogonal(c: Context, a: Value, scales: Value, columns: int) -> Value:
    """The first columns of Q."""
    batch, rows, _ = a.shape
    return apply(c, a, scales, la.identity(c, (batch, rows, columns), a.dtype), adjoint=False)


@lowering("aten.geqrf.default")
def geqrf(c: Context, a: Value) -> OptionalValues:
    """R with the reflectors below it, and their factors."""
    return c.promised(*factor(c, la.batched(c, a)))


@lowering("aten.linalg_qr.default")
def qr(c: Context, a: Value, mode: str = "reduced") -> OptionalValues:
    """Q and R: `complete`, of the first `min(rows, columns)` (`reduced`), or R alone (`r`)."""
    matrices = la.batched(c, a)
    rows, columns = matrices.shape[1:]
    count = rows if mode == "complete" else min(rows, columns)
    compact, scales = factor(c, matrices)
    upper = la.triangle(c, la.cropped(c, compact, count, columns), upper=True)
    q = c.zeros(0) if mode == "r" else orthogonal(c, compact, scales, count)
    return c.promised(q, upper)


@lowering("aten.linalg_householder_product.default")
def householder_product(c: Context, a: Value, tau: Value) -> Value:
    """The first columns of the product of the reflectors."""
    matrices = la.batched(c, a)
    scales = c.reshape(tau, (matrices.shape[0], tau.shape[-1]))
    return c.reshape(orthogonal(c, matrices, scales, a.shape[-1]), c.output.shape)


@lowering("aten.ormqr.default")
def ormqr(
    c: Context, a: Value, tau: Value, other: Value, left: bool = True, transpose: bool = False
) -> Value:
    """`op(Q) @ other`, or `other @ op(Q)`."""
    matrices, x = la.batched(c, a), la.batched(c, other)
    scales = c.reshape(tau, (matrices.shape[0], tau.shape[-1]))
    if left:
        found = apply(c, matrices, scales, x, adjoint=transpose)
    else:
        found = la.adjoint(c, apply(c, matrices, scales, la.adjoint(c, x), adjoint=not transpose))
    return c.reshape(found, c.output.shape)
