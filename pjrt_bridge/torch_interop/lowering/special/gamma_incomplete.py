"""The regularized incomplete gamma functions P and Q.

By regions, as SciPy and ATen choose them: Temme's uniform expansion where both arguments are large
and near each other (DLMF 8.12), a power series of P (DLMF 8.11.4) or of Q (DLMF 8.7.3), or the
continued fraction of Q (DLMF 8.9.2). The last three are loops of at most 2000 iterations that end
when no element of their region changes any more. ATen semantics kept: negative arguments give NaN,
and so do (0, 0) and (inf, inf).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import INT32, Context
from pjrt_bridge.torch_interop.lowering.math.approximation import (
    EPSILON,
    at_most,
    equals,
    is_nan,
    less,
    like,
    minus,
    nan_where,
    over,
    plus,
    polynomial,
    ratio,
    times,
)
from pjrt_bridge.torch_interop.lowering.registry import lowering
from pjrt_bridge.torch_interop.lowering.special.gamma import log_gamma

_TURNS = 2000
_ORDERS, _POWERS = 16, 24
"""Terms of Temme's expansion in 1 / a and in eta: enough for double precision from a = 20 on."""

_LANCZOS_G = 6.024680040776729583740234375
_LANCZOS_ABOVE = (
    0.006061842346248907,
    0.5098416655656676,
    19.519927882476175,
    449.9445569063168,
    6955.999602515376,
    75999.29304014542,
    601859.6171681099,
    3481712.154980646,
    14605578.087685067,
    43338889.32467614,
    86363131.2881386,
    103794043.11634454,
    56906521.913471565,
)
"""Lanczos' sum times exp(g), N = 13 (Boost, `lanczos13m53`), over x (x + 1) ... (x + 11)."""

_LANCZOS_BELOW = (
    1.0,
    66.0,
    1925.0,
    32670.0,
    357423.0,
    2637558.0,
    13339535.0,
    45995730.0,
    105258076.0,
    150917976.0,
    120543840.0,
    39916800.0,
    0.0,
)


@lowering("aten.igamma.default")
def lower_gamma(c: Context, a: Value, x: Value) -> Value:
    """P(a, x)."""
    b = c.b
    a, x = c.arithmetic(a, x)
    regions = _Regions(b, a, x)
    p, q = regions.values()
    beyond = b.and_(b.compare(x, like(b, x, 1), "GT"), b.compare(x, a, "GT"))
    value = b.select(beyond, minus(b, 1, q), p)
    value = b.select(regions.uniform, _uniform(b, a, x, regions.uniform, -1), value)
    return c.result(_at_ends(b, a, x, value, 0, 1))


@lowering("aten.igammac.default")
def upper_gamma(c: Context, a: Value, x: Value) -> Value:
    """Q(a, x) = 1 - P(a, x)."""
    b = c.b
    a, x = c.arithmetic(a, x)
    regions = _Regions(b, a, x)
    p, q = regions.values()
    value = b.select(regions.lower, minus(b, 1, p), q)
    value = b.select(regions.uniform, _uniform(b, a, x, regions.uniform, 1), value)
    return c.result(_at_ends(b, a, x, value, 1, 0))


def _at_ends(
    b: Builder, a: Value, x: Value, value: Value, without: float, everything: float
) -> Value:
    """The values where an argument is 0, infinite, negative or no number."""
    whole, empty = like(b, x, everything), like(b, x, without)
    value = nan_where(b, b.or_(is_nan(b, a), is_nan(b, x)), value)
    infinite_a, infinite_x = equals(b, a, math.inf), equals(b, x, math.inf)
    value = b.select(infinite_x, whole, value)
    value = b.select(infinite_a, nan_where(b, infinite_x, empty), value)
    value = b.select(equals(b, x, 0), empty, value)
    none = nan_where(b, b.not_(b.compare(x, like(b, x, 0), "GT")), whole)
    value = b.select(equals(b, a, 0), none, value)
    return nan_where(b, b.or_(less(b, a, 0), less(b, x, 0)), value)


class _Regions:
    """Which method is right for which elements.

    Attributes:
        uniform: both arguments are large and near each other.
        lower: elsewhere, the power series of P.
    """

    def __init__(self, b: Builder, a: Value, x: Value) -> None:
        self._b, self._a, self._x = b, a, x
        positive = b.and_(b.compare(a, like(b, a, 0), "GT"), b.compare(x, like(b, x, 0), "GT"))
        finite = b.and_(positive, b.and_(b.is_finite(a), b.is_finite(x)))
        apart = b.divide(b.abs(b.subtract(x, a)), a)
        above_20, above_200 = (b.compare(a, like(b, a, n), "GT") for n in (20, 200))
        middle = b.and_(b.and_(above_20, less(b, a, 200)), less(b, apart, 0.3))
        near = b.compare(apart, over(b, 4.5, b.sqrt(a)), "LT")
        self.uniform = b.and_(finite, b.or_(middle, b.and_(above_200, near)))
        self._rest = b.and_(finite, b.not_(self.uniform))
        large, small = b.compare(x, like(b, x, 1.1), "GT"), at_most(b, x, 0.5)
        self._large = large
        tiny = b.compare(b.divide(like(b, x, -0.4), b.log(x)), a, "LT")
        medium = b.compare(times(b, x, 1.1), a, "LT")
        lower = b.select(large, b.compare(x, a, "LT"), b.select(small, tiny, medium))
        self.lower = b.and_(self._rest, lower)

    def values(self) -> tuple[Value, Value]:
        """P and Q: each by its own methods, undefined where the other is used."""
        b, a, x = self._b, self._a, self._x
        factor = _factor(b, a, x)
        one = like(b, x, 1)
        # Where P is requested and Q's methods are not more exact, P's series is used as well.
        below = b.or_(at_most(b, x, 1), b.compare(x, a, "LE"))
        p = _series(b, a, x, factor, b.and_(self._rest, b.or_(self.lower, below)))
        upper = b.and_(self._rest, b.not_(self.lower))
        fraction = b.and_(upper, self._large)
        series = b.and_(upper, b.not_(self._large))
        q = b.select(
            fraction,
            _continued_fraction(b, a, x, factor, fraction),
            _upper_series(b, b.select(series, a, one), b.select(series, x, one), series),
        )
        return p, q


def _factor(b: Builder, a: Value, x: Value) -> Value:
    """`x ** a exp(-x) / gamma(a)`, by Lanczos' approximation where a is near x."""
    apart = b.compare(b.abs(b.subtract(a, x)), times(b, b.abs(a), 0.4), "GT")
    plain = b.exp(b.subtract(b.subtract(b.multiply(a, b.log(x)), x), log_gamma(b, a)))
    base = plus(b, a, _LANCZOS_G - 0.5)
    inverse = over(b, 1, a)
    lanczos = b.select(
        b.compare(a, like(b, a, 1), "GT"),
        ratio(b, inverse, _LANCZOS_ABOVE[::-1], _LANCZOS_BELOW[::-1]),
        ratio(b, a, _LANCZOS_ABOVE, _LANCZOS_BELOW),
    )
    scale = b.divide(b.sqrt(times(b, base, 1 / math.e)), lanczos)
    power = b.multiply(b.exp(b.subtract(a, x)), b.power(b.divide(x, base), a))
    shift = b.divide(plus(b, b.subtract(x, a), 0.5 - _LANCZOS_G), base)
    exponent = b.multiply(a, b.subtract(b.log1p(shift), shift))
    exponent = b.add(exponent, b.divide(times(b, x, 0.5 - _LANCZOS_G), base))
    moderate = b.and_(less(b, a, 200), less(b, x, 200))
    near = b.multiply(scale, b.select(moderate, power, b.exp(exponent)))
    return b.select(apart, plain, near)


Turn = Callable[[Value, tuple[Value, ...]], tuple[tuple[Value, ...], Value]]
"""From the number of an iteration, a float, and a state to the next one and where it is final."""


def _repeat(b: Builder, state: tuple[Value, ...], wanted: Value, turn: Turn) -> tuple[Value, ...]:
    """Iterations 1, 2, ... for every wanted element until it is final."""
    dims, kind = tuple(range(wanted.rank)), state[0].dtype

    def goes_on(carried: tuple[Value, ...]) -> Value:
        few = b.compare(carried[0], b.full((), _TURNS, INT32), "LT")
        return b.and_(few, b.reduce_or(carried[1], dims))

    def body(carried: tuple[Value, ...]) -> tuple[Value, ...]:
        counter, active, *old = carried
        counter = b.add(counter, b.full((), 1, INT32))
        number = b.broadcast_in_dim(b.convert(counter, kind), wanted.shape, ())
        new, final = turn(number, tuple(old))
        kept = (b.select(active, n, o) for n, o in zip(new, old, strict=True))
        return counter, b.and_(active, b.not_(final)), *kept

    return b.while_((b.full((), 0, INT32), wanted, *state), goes_on, body)[2:]


def _within(b: Builder, change: Value, total: Value) -> Value:
    """Whether a change is below the rounding of a total."""
    bound = times(b, b.abs(total), EPSILON[total.dtype.bits] / 2)
    return b.compare(b.abs(change), bound, "LE")


def _series(b: Builder, a: Value, x: Value, factor: Value, wanted: Value) -> Value:
    """P by the sum of `x ** k / ((a + 1) ... (a + k))`."""

    def turn(number: Value, old: tuple[Value, ...]) -> tuple[tuple[Value, ...], Value]:
        term, total = old
        term = b.multiply(term, b.divide(x, b.add(a, number)))
        total = b.add(total, term)
        return (term, total), _within(b, term, total)

    one = like(b, x, 1)
    total = _repeat(b, (one, one), wanted, turn)[1]
    return b.divide(b.multiply(total, factor), a)


def _upper_series(b: Builder, a: Value, x: Value, wanted: Value) -> Value:
    """Q by the sum of `(-x) ** k / (k! (a + k))`, without cancellation."""

    def turn(number: Value, old: tuple[Value, ...]) -> tuple[tuple[Value, ...], Value]:
        power, total = old
        power = b.multiply(power, b.divide(b.negate(x), number))
        term = b.divide(power, b.add(a, number))
        total = b.add(total, term)
        return (power, total), _within(b, term, total)

    total = _repeat(b, (like(b, x, 1), like(b, x, 0)), wanted, turn)[1]
    exponent = b.multiply(a, b.log(x))
    first = b.negate(b.expm1(b.subtract(exponent, log_gamma(b, plus(b, a, 1)))))
    return b.subtract(first, b.multiply(b.exp(b.subtract(exponent, log_gamma(b, a))), total))


def _continued_fraction(b: Builder, a: Value, x: Value, factor: Value, wanted: Value) -> Value:
    """Q by the convergents of a continued fraction, scaled down when they grow."""
    big = 1 / EPSILON[x.dtype.bits]

    def turn(number: Value, old: tuple[Value, ...]) -> tuple[tuple[Value, ...], Value]:
        above, above_old, below, below_old, value = old
        y = b.add(minus(b, 1, a), number)
        z = b.add(b.add(x, y), plus(b, number, 1))
        weight = b.multiply(y, number)
        above_new = b.subtract(b.multiply(above, z), b.multiply(above_old, weight))
        below_new = b.subtract(b.multiply(below, z), b.multiply(below_old, weight))
        empty = equals(b, below_new, 0)
        convergent = b.select(empty, value, b.divide(above_new, below_new))
        final = b.and_(b.not_(empty), _within(b, b.subtract(value, convergent), convergent))
        huge = b.compare(b.abs(above_new), like(b, x, big), "GT")
        scale = b.select(huge, like(b, x, 1 / big), like(b, x, 1))
        pairs = (above_new, above, below_new, below)
        return (*(b.multiply(v, scale) for v in pairs), convergent), final

    above, below = plus(b, x, 1), b.multiply(x, plus(b, b.subtract(x, a), 2))
    state = (above, like(b, x, 1), below, x, b.divide(above, below))
    return b.multiply(_repeat(b, state, wanted, turn)[4], factor)


_LOGARITHM = tuple((-1.0) ** (k + 1) / k for k in range(36, 1, -1))
"""Powers of s in (log(1 + s) - s) / s ** 2."""


def _uniform(b: Builder, a: Value, x: Value, wanted: Value, sign: int) -> Value:
    """Temme's expansion: of Q with the sign 1, of P with -1 (DLMF 8.12.3 and 8.12.4)."""
    a = b.select(wanted, a, like(b, a, 1))
    x = b.select(wanted, x, like(b, x, 1))
    apart = b.divide(b.subtract(x, a), a)
    square = b.multiply(apart, apart)
    # Half of eta squared is apart - log(1 + apart), here without cancellation.
    half = b.negate(b.multiply(square, polynomial(b, apart, _LOGARITHM)))
    eta = b.sqrt(times(b, half, 2))
    eta = b.select(less(b, apart, 0), b.negate(eta), eta)
    table = b.constant(_temme(), x.dtype)
    dims = tuple(range(x.rank))

    def goes_on(carried: tuple[Value, ...]) -> Value:
        left = b.compare(carried[0], b.full((), 0, INT32), "GE")
        return b.and_(left, b.reduce_or(wanted, dims))

    def body(carried: tuple[Value, ...]) -> tuple[Value, ...]:
        order, total = carried
        row = b.dynamic_slice(table, (order, b.full((), 0, INT32)), (1, _POWERS))
        value = like(b, x, 0)
        for power in reversed(range(_POWERS)):
            coefficient = b.reshape(b.slice(row, (0, power), (1, power + 1), (1, 1)), ())
            coefficient = b.broadcast_in_dim(coefficient, x.shape, ())
            value = b.add(b.multiply(value, eta), coefficient)
        total = b.add(b.divide(total, a), value)
        return b.subtract(order, b.full((), 1, INT32)), total

    total = b.while_((b.full((), _ORDERS - 1, INT32), like(b, x, 0)), goes_on, body)[1]
    main = times(b, b.erfc(times(b, b.multiply(eta, b.sqrt(times(b, a, 0.5))), sign)), 0.5)
    decay = b.exp(b.negate(b.multiply(a, half)))
    rest = b.divide(b.multiply(decay, total), b.sqrt(times(b, a, 2 * math.pi)))
    return b.add(main, times(b, rest, sign))


@cache
def _temme() -> np.ndarray:
    """(orders, powers): coefficients of Temme's expansion (DLMF 8.12.12), by exact recurrences."""
    count = 2 * _ORDERS + _POWERS + 3
    # Powers of eta in x / a - 1, by inversion of eta ** 2 / 2 = m - log(1 + m).
    alpha = [Fraction(0), Fraction(1)]
    for n in range(2, count):
        products = sum(alpha[i] * alpha[n + 1 - i] for i in range(2, n))
        alpha.append((2 * alpha[n - 1] / (n + 1) - products) / 2)
    # Powers of 1 / a in Stirling's series.
    stirling = [alpha[2 * k + 1] * math.prod(range(1, 2 * k + 2, 2)) for k in range(_ORDERS)]
    first = [Fraction(-1, 3), *((n + 2) * alpha[n + 2] for n in range(1, count - 2))]
    rows = [first]
    for k in range(1, _ORDERS):
        before = rows[-1]
        rows.append(
            [
                (-1) ** k * stirling[k] * first[n] + (n + 2) * before[n + 2]
                for n in range(len(before) - 2)
            ]
        )
    return np.array([[float(value) for value in row[:_POWERS]] for row in rows])
