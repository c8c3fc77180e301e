"""The logarithm of the gamma function, polygamma functions and Hurwitz' zeta function.

ATen semantics kept: poles are infinite; zeta(1, q) is infinite and zeta(x, q) NaN for x below 1,
and for negative q unless x is whole; trigamma is ATen's own formula, which near its poles on the
negative side depends on the rounding of pi.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import Context, Operand
from pjrt_bridge.torch_interop.lowering.math.approximation import (
    EPSILON,
    at_most,
    elementwise,
    equals,
    infinite_where,
    less,
    like,
    minus,
    nan_where,
    over,
    plus,
    polynomial,
    times,
)
from pjrt_bridge.torch_interop.lowering.registry import lowering

_TERMS = 9
"""Terms of zeta's series that are added before the rest is an integral."""

_BERNOULLI = (
    (1, 6),
    (-1, 30),
    (1, 42),
    (-1, 30),
    (5, 66),
    (-691, 2730),
    (7, 6),
    (-3617, 510),
    (43867, 798),
    (-174611, 330),
    (854513, 138),
    (-236364091, 2730),
)
"""The numbers of even index, 2 to 24 (DLMF 24.2)."""

_LOG_GAMMA_TERMS = {32: 13, 64: 26}
"""By the bits of a float: after so many terms the series of `log_gamma` is exact to rounding."""


@elementwise("aten.lgamma.default")
def log_gamma(b: Builder, x: Value) -> Value:
    """The logarithm of the magnitude of gamma.

    Its values next to the roots 1 and 2 are differences of much larger terms in the approximation
    that compilers expand. From 0.5 to 2.5 it is the series around 2 instead (DLMF 5.7.3).
    """
    lower = less(b, x, 1.5)
    near = b.subtract(x, b.select(lower, like(b, x, 1), like(b, x, 2)))
    series = b.multiply(near, polynomial(b, near, _log_gamma_coefficients(x.dtype.bits)))
    series = b.select(lower, b.subtract(series, b.log1p(near)), series)
    inside = less(b, b.abs(plus(b, x, -1.5)), 1)
    return b.select(inside, series, b.lgamma(x))


@cache
def _log_gamma_coefficients(bits: int) -> tuple[float, ...]:
    """Of `log(gamma(2 + y)) / y`, the highest power first."""
    count = _LOG_GAMMA_TERMS[bits]
    higher = [(-1) ** k * _zeta_minus_one(k) / k for k in range(count, 1, -1)]
    return (*higher, 1 - np.euler_gamma)


def _zeta_minus_one(k: int) -> float:
    """Riemann's `zeta(k) - 1` by the Euler-Maclaurin formula (DLMF 25.2.9)."""
    last = 50.0
    rest = last ** (1 - k) / (k - 1) + last**-k / 2
    for order, (above, below) in enumerate(_BERNOULLI[:4], 1):
        rising = math.prod(range(k, k + 2 * order - 1)) / math.factorial(2 * order)
        rest += above / below * rising * last ** (1 - k - 2 * order)
    return math.fsum((*(n**-k for n in range(2, int(last))), rest))


@lowering(
    "aten.special_zeta.default", "aten.special_zeta.self_scalar", "aten.special_zeta.other_scalar"
)
def hurwitz(c: Context, x: Operand, q: Operand) -> Value:
    """The sum of `(q + k) ** -x` over k = 0, 1, ..."""
    return c.result(zeta(c.b, *c.arithmetic(x, q)))


def zeta(b: Builder, x: Value, q: Value) -> Value:
    """Hurwitz' zeta function.

    For negative q the series is that of the positive numbers q + k and, with the sign of
    `(-1) ** -x`, the first part of that of the numbers 1 - (q + k): no more terms however far q is
    from 0.
    """
    whole_q = b.compare(q, b.floor(q), "EQ")
    negative = b.and_(at_most(b, q, 0), b.not_(whole_q))
    fraction, missing = b.subtract(q, b.floor(q)), b.subtract(b.ceil(q), q)
    positive = _zeta(b, x, b.select(negative, fraction, q))
    odd = b.compare(b.remainder(x, like(b, x, 2)), like(b, x, 0), "NE")

    def mirrored() -> Value:
        upper = _zeta(b, x, b.select(negative, missing, like(b, x, 1)))
        rest = _zeta(b, x, b.select(negative, minus(b, 1, q), like(b, x, 1)))
        first = b.subtract(upper, rest)
        first = b.select(odd, b.negate(first), first)
        return b.select(negative, b.add(positive, first), positive)

    anywhere = b.reduce_or(negative, tuple(range(x.rank)))
    (value,) = b.if_(anywhere, mirrored, lambda: positive)
    broken = b.and_(at_most(b, q, 0), b.compare(x, b.floor(x), "NE"))
    value = nan_where(b, broken, value)
    endless = b.and_(equals(b, x, math.inf), less(b, q, 1))
    value = infinite_where(b, endless, value)
    value = infinite_where(b, b.and_(at_most(b, q, 0), whole_q), value)
    value = nan_where(b, less(b, x, 1), value)
    return infinite_where(b, equals(b, x, 1), value)


def _zeta(b: Builder, x: Value, q: Value) -> Value:
    """For q > 0 by the Euler-Maclaurin formula (DLMF 25.11.5), as Cephes' zeta.c does."""
    epsilon = like(b, x, EPSILON[x.dtype.bits] / 2)
    power = b.negate(x)
    place, total = q, b.power(q, power)
    for _ in range(_TERMS):
        place = plus(b, place, 1)
        term = b.power(place, power)
        total = b.add(total, term)
    done = b.compare(term, b.multiply(epsilon, total), "LT")
    rest = b.divide(b.multiply(term, place), plus(b, x, -1))
    corrected = b.add(total, b.subtract(rest, times(b, term, 0.5)))
    total = b.select(done, total, corrected)
    factor = like(b, x, 1)
    for k, (above, below) in enumerate(_BERNOULLI):
        factor = b.multiply(factor, plus(b, x, 2 * k))
        term = b.divide(term, place)
        scale = above / (below * math.factorial(2 * k + 2))
        new = b.add(total, times(b, b.multiply(factor, term), scale))
        small = b.compare(b.abs(b.subtract(new, total)), b.multiply(epsilon, b.abs(total)), "LE")
        total = b.select(done, total, new)
        # Later terms may be 0 times infinity.
        done = b.or_(done, small)
        factor = b.multiply(factor, plus(b, x, 2 * k + 1))
        term = b.divide(term, place)
    return total


def trigamma(b: Builder, x: Value) -> Value:
    """The second derivative of log gamma: ATen's reflection, recurrence and expansion."""
    left = less(b, x, 0.5)
    sine = b.sin(times(b, x, math.pi))
    mirror = b.divide(like(b, x, math.pi**2), b.multiply(sine, sine))
    total = b.select(left, b.negate(mirror), like(b, x, 0))
    x = b.select(left, minus(b, 1, x), x)
    for _ in range(6):
        total = b.add(total, over(b, 1, b.multiply(x, x)))
        x = plus(b, x, 1)
    inverse = over(b, 1, b.multiply(x, x))
    series = minus(b, 1 / 30, times(b, inverse, 1 / 42))
    series = minus(b, 1 / 6, b.multiply(inverse, series))
    series = b.add(plus(b, over(b, 0.5, x), 1), b.multiply(inverse, series))
    total = b.add(total, b.divide(series, x))
    return b.select(left, b.negate(total), total)


@lowering("aten.polygamma.default")
def polygamma(c: Context, n: int, x: Value) -> Value:
    """The n-th derivative of digamma: `(-1) ** (n + 1) n! zeta(n + 1, x)`.

    Digamma at its pole 0 is infinite with the sign of `-x`, at the others NaN.
    """
    b = c.b
    value = c.widen(x, c.output.dtype)
    if n == 0:
        pole = over(b, -1, value)
        return c.result(b.select(equals(b, value, 0), pole, b.digamma(value)))
    if n == 1:
        return c.result(trigamma(b, value))
    factor = math.factorial(n) if n <= 170 else math.inf
    if value.dtype.bits == 32 and n > 34:
        factor = math.inf
    scaled = times(b, zeta(b, like(b, value, n + 1), value), factor)
    return c.result(scaled if n % 2 else b.negate(scaled))
