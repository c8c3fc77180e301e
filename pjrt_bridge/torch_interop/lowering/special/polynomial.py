"""Orthogonal polynomials whose degree is a tensor: Chebyshev, Hermite, Laguerre, Legendre.

Three-term recurrences (DLMF 18.9), one degree in each iteration of a loop, each element up to
its own degree; a Chebyshev polynomial of a higher degree between -1 and 1 is trigonometric
(DLMF 18.5). ATen semantics kept: the degree is rounded towards zero, a negative one, or one that
is no number, gives 0; a recurrence that has come to NaN ends; Hermite polynomials above a degree
that depends on the type are NaN. Shifted polynomials are those of 2 x - 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import INT64, Context, Operand
from pjrt_bridge.torch_interop.lowering.math.approximation import (
    equals,
    is_nan,
    less,
    like,
    minus,
    nan_where,
    plus,
    times,
)
from pjrt_bridge.torch_interop.lowering.registry import lowering

RecurrenceStep = Callable[[Builder, Value, Value, Value, Value], Value]
"""From x, the degree to come and the values of the two degrees before it (last first)."""

Start = Callable[[Builder, Value], Value]
"""The polynomial of degree 1."""

_HERMITE_LIMIT = {32: 128, 64: 512}
"""The highest degree, by the bits of a float, that ATen computes."""


def _recurrence(
    b: Builder,
    x: Value,
    degree: Value,
    start: Start,
    step: RecurrenceStep,
    wanted: Value | None = None,
) -> Value:
    """The polynomials of these degrees; undefined where they are not wanted."""
    first, one = start(b, x), like(b, degree, 1)

    def unfinished(counter: Value, last: Value) -> Value:
        more = b.and_(
            b.compare(b.broadcast_in_dim(counter, x.shape, ()), degree, "LE"),
            b.not_(is_nan(b, last)),
        )
        return more if wanted is None else b.and_(more, wanted)

    def goes_on(carried: tuple[Value, ...]) -> Value:
        counter, _, last = carried
        return b.reduce_or(unfinished(counter, last), tuple(range(x.rank)))

    def turn(carried: tuple[Value, ...]) -> tuple[Value, ...]:
        counter, before, last = carried
        more = unfinished(counter, last)
        number = b.broadcast_in_dim(b.convert(counter, x.dtype), x.shape, ())
        new = step(b, x, number, last, before)
        counter = b.add(counter, like(b, counter, 1))
        return counter, b.select(more, last, before), b.select(more, new, last)

    inits = (b.full((), 2, INT64), like(b, x, 1), first)
    value = b.while_(inits, goes_on, turn)[2]
    value = b.select(b.compare(degree, one, "LT"), like(b, x, 1), value)
    return b.select(less(b, degree, 0), like(b, x, 0), value)


def _whole(c: Context, degree: Value) -> Value:
    """The degrees as int64; -1 for what is no number or too large for one."""
    known = less(c.b, c.b.abs(degree), 2.0**63)
    return c.cast(c.b.select(known, degree, like(c.b, degree, -1)), INT64)


def _register(name: str, evaluate: Callable[[Builder, Value, Value], Value]) -> None:
    overloads = ("default", "x_scalar", "n_scalar")

    @lowering(*(f"aten.special_{name}.{overload}" for overload in overloads))
    def _lower(c: Context, x: Operand, n: Operand) -> Value:
        point, degree = c.arithmetic(x, n)
        return c.result(evaluate(c.b, point, _whole(c, degree)))


def _hermite_h(b: Builder, x: Value, degree: Value) -> Value:
    """2 x H[k-1] - 2 (k - 1) H[k-2]."""

    def step(b: Builder, x: Value, k: Value, last: Value, before: Value) -> Value:
        weight = times(b, plus(b, k, -1), 2)
        return b.subtract(b.multiply(b.add(x, x), last), b.multiply(weight, before))

    return _hermite(b, x, degree, lambda b, x: b.add(x, x), step)


def _hermite_he(b: Builder, x: Value, degree: Value) -> Value:
    """`x He[k-1] - (k - 1) He[k-2]`."""

    def step(b: Builder, x: Value, k: Value, last: Value, before: Value) -> Value:
        return b.subtract(b.multiply(x, last), b.multiply(plus(b, k, -1), before))

    return _hermite(b, x, degree, lambda b, x: x, step)


def _hermite(b: Builder, x: Value, degree: Value, start: Start, step: RecurrenceStep) -> Value:
    limit = like(b, degree, _HERMITE_LIMIT[x.dtype.bits])
    too_high = b.compare(degree, limit, "GT")
    return nan_where(b, too_high, _recurrence(b, x, b.minimum(degree, limit), start, step))


def _laguerre(b: Builder, x: Value, degree: Value) -> Value:
    """((2 k - 1 - x) L[k-1] - (k - 1) L[k-2]) / k; 1 at 0."""

    def step(b: Builder, x: Value, k: Value, last: Value, before: Value) -> Value:
        fewer = plus(b, k, -1)
        leading = b.multiply(b.add(b.add(fewer, fewer), minus(b, 1, x)), last)
        return b.divide(b.subtract(leading, b.multiply(fewer, before)), k)

    origin = equals(b, x, 0)
    value = _recurrence(b, x, degree, lambda b, x: minus(b, 1, x), step, b.not_(origin))
    return _replaced(b, value, degree, origin, like(b, x, 1))


def _legendre(b: Builder, x: Value, degree: Value) -> Value:
    """((2 k - 1) x P[k-1] - (k - 1) P[k-2]) / k; 1 or -1 at the ends."""

    def step(b: Builder, x: Value, k: Value, last: Value, before: Value) -> Value:
        fewer = plus(b, k, -1)
        leading = b.multiply(b.multiply(b.add(fewer, k), x), last)
        return b.divide(b.subtract(leading, b.multiply(fewer, before)), k)

    ends = equals(b, b.abs(x), 1)
    value = _recurrence(b, x, degree, lambda b, x: x, step, b.not_(ends))
    at_end = b.select(less(b, x, 0), _alternating(b, degree, x), like(b, x, 1))
    return _replaced(b, value, degree, ends, at_end)


def _replaced(b: Builder, value: Value, degree: Value, where: Value, other: Value) -> Value:
    """`other` where the condition holds and the degree is not negative."""
    return b.select(b.and_(where, b.not_(less(b, degree, 0))), other, value)


def _alternating(b: Builder, degree: Value, x: Value) -> Value:
    """1 for an even degree, -1 for an odd one."""
    even = equals(b, b.and_(degree, like(b, degree, 1)), 0)
    return b.select(even, like(b, x, 1), like(b, x, -1))


for _name, _evaluate in {
    "hermite_polynomial_h": _hermite_h,
    "hermite_polynomial_he": _hermite_he,
    "laguerre_polynomial_l": _laguerre,
    "legendre_polynomial_p": _legendre,
}.items():
    _register(_name, _evaluate)


@dataclass(frozen=True)
class _Chebyshev:
    """One kind of Chebyshev polynomials.

    Attributes:
        start: the polynomial of degree 1.
        right: values at 1, by degree.
        left: values at -1, but for the sign (-1) ** degree.
        trigonometric: from the degree, as a float, and the arc cosine of x.
        recurred: the highest degree that is always computed by recurrence, and the same of the
            shifted polynomials.
    """

    start: Start
    right: Start
    left: Start
    trigonometric: Callable[[Builder, Value, Value], Value]
    recurred: tuple[int, int]


def _one(b: Builder, x: Value) -> Value:
    return like(b, x, 1)


def _next(b: Builder, n: Value) -> Value:
    return plus(b, n, 1)


def _double(b: Builder, n: Value) -> Value:
    return plus(b, b.add(n, n), 1)


def _cosine(b: Builder, n: Value, angle: Value) -> Value:
    return b.cos(b.multiply(n, angle))


def _sines(b: Builder, n: Value, angle: Value) -> Value:
    return b.divide(b.sin(b.multiply(plus(b, n, 1), angle)), b.sin(angle))


def _half_cosines(b: Builder, n: Value, angle: Value) -> Value:
    """At an angle that rounds to pi the value there."""
    half = times(b, angle, 0.5)
    value = b.divide(b.cos(b.multiply(plus(b, n, 0.5), angle)), b.cos(half))
    end = b.multiply(_double(b, n), _alternating(b, b.convert(n, INT64), n))
    return b.select(equals(b, b.sin(half), 1), end, value)


def _half_sines(b: Builder, n: Value, angle: Value) -> Value:
    """At an angle that rounds to 0 the value there."""
    half = times(b, angle, 0.5)
    value = b.divide(b.sin(b.multiply(plus(b, n, 0.5), angle)), b.sin(half))
    return b.select(equals(b, b.cos(half), 1), _double(b, n), value)


_CHEBYSHEV = {
    "t": _Chebyshev(lambda b, x: x, _one, _one, _cosine, (6, 6)),
    "u": _Chebyshev(lambda b, x: b.add(x, x), _next, _next, _sines, (8, 6)),
    "v": _Chebyshev(lambda b, x: plus(b, b.add(x, x), -1), _one, _double, _half_cosines, (8, 6)),
    "w": _Chebyshev(lambda b, x: plus(b, b.add(x, x), 1), _double, _one, _half_sines, (8, 4)),
}


def _chebyshev(kind: _Chebyshev, shifted: bool) -> Callable[[Builder, Value, Value], Value]:
    def step(b: Builder, x: Value, k: Value, last: Value, before: Value) -> Value:
        return b.subtract(b.multiply(b.add(x, x), last), before)

    def evaluate(b: Builder, x: Value, degree: Value) -> Value:
        if shifted:
            x = plus(b, b.add(x, x), -1)
        number, size = b.convert(degree, x.dtype), b.abs(x)
        high = b.compare(degree, like(b, degree, kind.recurred[shifted]), "GT")
        inside = b.and_(high, less(b, size, 1))
        ends = equals(b, size, 1)
        value = _recurrence(b, x, degree, kind.start, step, b.not_(b.or_(inside, ends)))
        value = b.select(inside, kind.trigonometric(b, number, b.acos(x)), value)
        left = b.multiply(kind.left(b, number), _alternating(b, degree, x))
        at_end = b.select(less(b, x, 0), left, kind.right(b, number))
        return _replaced(b, value, degree, ends, at_end)

    return evaluate


for _name, _kind in _CHEBYSHEV.items():
    _register(f"chebyshev_polynomial_{_name}", _chebyshev(_kind, False))
    _register(f"shifted_chebyshev_polynomial_{_name}", _chebyshev(_kind, True))
