"""Bessel functions of the orders 0 and 1, of the first and second kind, and the spherical j0.

Rational approximations of Cephes (Moshier, "Methods and Programs for Mathematical Functions", 1989;
j0.c and j1.c): below 5 with the first zeros as factors, above 5 the modulus and phase of Hankel's
expansion (DLMF 10.17). ATen semantics kept: the second kind is -inf at 0 and NaN below; the first
kind is even or odd; of NaN and of infinity all are NaN, except the spherical j0 of infinity, which
is 0. Kept as well is that ATen's denominators lack the leading 1 that Cephes' have, which makes
errors of up to 1e-6 in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.math.approximation import (
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
    ratio,
    times,
)

_J0_SMALL_ABOVE = (
    -4794432209.782018,
    1956174919465.5657,
    -249248344360967.72,
    9708622510473064.0,
)
_J0_SMALL_BELOW = (
    499.563147152651,
    173785.4016763747,
    48440965.83399621,
    11185553704.535683,
    2112775201154.892,
    310518229857422.56,
    3.1812195594320496e16,
    1.7108629408104315e18,
)
_P0_ABOVE = (
    0.0007969367292973471,
    0.08283523921074408,
    1.239533716464143,
    5.447250030587687,
    8.74716500199817,
    5.303240382353949,
    1.0,
)
_P0_BELOW = (
    0.0009244088105588637,
    0.08562884743544745,
    1.2535274390105895,
    5.470977403304171,
    8.761908832370695,
    5.306052882353947,
    1.0,
)
_Q0_ABOVE = (
    -0.011366383889846916,
    -1.2825271867050931,
    -19.553954425773597,
    -93.20601521237683,
    -177.68116798048806,
    -147.07750515495118,
    -51.41053267665993,
    -6.050143506007285,
)
_Q0_BELOW = (
    64.3178256118178,
    856.4300259769806,
    3882.4018360540163,
    7240.467741956525,
    5930.727011873169,
    2062.0933166032783,
    242.0057402402914,
)
_J0_ZEROS = (5.783185962946785, 30.471262343662087)
"""Squares of the first two zeros of J0."""

_Y0_SMALL_ABOVE = (
    15592.436785523574,
    -14663929.59039716,
    5435264770.518765,
    -982136065717.9115,
    87590639439536.7,
    -3466283033847297.0,
    4.4273326857256984e16,
    -1.8495080043698668e16,
)
_Y0_SMALL_BELOW = (
    1041.2835366425984,
    626107.330137135,
    268919633.39381415,
    86400248710.3935,
    20297961275010.555,
    3171577528429750.5,
    2.5059625617265306e17,
)
_J1_SMALL_ABOVE = (
    -899971225.7055594,
    452228297998.19403,
    -72749424522181.83,
    3682957328638529.0,
)
_J1_SMALL_BELOW = (
    620.8364781180543,
    256987.25675774884,
    83514679.14319493,
    22151159547.97925,
    4749141220799.914,
    784369607876235.9,
    8.952223361846274e16,
    5.322786203326801e18,
)
_P1_ABOVE = (
    0.0007621256162081731,
    0.07313970569409176,
    1.1271960812968493,
    5.112079511468076,
    8.424045901417724,
    5.214515986823615,
    1.0,
)
_P1_BELOW = (
    0.0005713231280725487,
    0.06884559087544954,
    1.105142326340617,
    5.073863861286015,
    8.399855543276042,
    5.209828486823619,
    1.0,
)
_Q1_ABOVE = (
    0.05108625947501766,
    4.982138729512334,
    75.82382841325453,
    366.7796093601508,
    710.8563049989261,
    597.4896124006136,
    211.68875710057213,
    25.207020585802372,
)
_Q1_BELOW = (
    74.23732770356752,
    1056.4488603826283,
    4986.410583376536,
    9562.318924047562,
    7997.041604473507,
    2826.1927851763908,
    336.0936078106983,
)
_J1_ZEROS = (14.681970642123893, 49.21845632169460)
"""Squares of the first two zeros of J1 that are not 0."""

_Y1_SMALL_ABOVE = (
    1263204747.9017804,
    -647355876379.1603,
    114509511541823.73,
    -8127702555013251.0,
    2.024394757135949e17,
    -7.788771962659501e17,
)
_Y1_SMALL_BELOW = (
    594.3015923461282,
    235564.09294306856,
    73481194.44597217,
    18760131610.870617,
    3882312774962.3857,
    620557727146953.8,
    6.871410873553005e16,
    3.9727060811656064e18,
)
_SPHERICAL = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1))
"""Powers of x squared in sin(x) / x."""


@elementwise("aten.special_bessel_j0.default")
def j0(b: Builder, x: Value) -> Value:
    """J0."""
    size = b.abs(x)
    square = b.multiply(x, x)
    below = ratio(b, square, _J0_SMALL_ABOVE, _J0_SMALL_BELOW)
    for zero in _J0_ZEROS:
        below = b.multiply(below, plus(b, square, -zero))
    tiny = minus(b, 1, times(b, square, 0.25))
    below = b.select(less(b, size, 1e-5), tiny, below)
    even, odd = _modulus(b, size, (_P0_ABOVE, _P0_BELOW), (_Q0_ABOVE, _Q0_BELOW))
    phase = plus(b, size, -math.pi / 4)
    wave = b.subtract(b.multiply(even, b.cos(phase)), b.multiply(odd, b.sin(phase)))
    return b.select(at_most(b, size, 5), below, _damped(b, wave, size))


@elementwise("aten.special_bessel_y0.default")
def y0(b: Builder, x: Value) -> Value:
    """Y0."""
    square = b.multiply(x, x)
    logarithm = times(b, b.multiply(b.log(x), j0(b, x)), 2 / math.pi)
    below = b.add(ratio(b, square, _Y0_SMALL_ABOVE, _Y0_SMALL_BELOW), logarithm)
    even, odd = _modulus(b, x, (_P0_ABOVE, _P0_BELOW), (_Q0_ABOVE, _Q0_BELOW))
    phase = plus(b, x, -math.pi / 4)
    wave = b.add(b.multiply(even, b.sin(phase)), b.multiply(odd, b.cos(phase)))
    return _from_zero(b, x, b.select(at_most(b, x, 5), below, _damped(b, wave, x)))


@elementwise("aten.special_bessel_j1.default")
def j1(b: Builder, x: Value) -> Value:
    """J1."""
    size = b.abs(x)
    square = b.multiply(x, x)
    below = b.multiply(ratio(b, square, _J1_SMALL_ABOVE, _J1_SMALL_BELOW), size)
    for zero in _J1_ZEROS:
        below = b.multiply(below, plus(b, square, -zero))
    even, odd = _modulus(b, size, (_P1_ABOVE, _P1_BELOW), (_Q1_ABOVE, _Q1_BELOW))
    phase = plus(b, size, -3 * math.pi / 4)
    wave = b.subtract(b.multiply(even, b.cos(phase)), b.multiply(odd, b.sin(phase)))
    value = b.select(at_most(b, size, 5), below, _damped(b, wave, size))
    return b.select(less(b, x, 0), b.negate(value), value)


@elementwise("aten.special_bessel_y1.default")
def y1(b: Builder, x: Value) -> Value:
    """Y1."""
    square = b.multiply(x, x)
    logarithm = b.subtract(b.multiply(j1(b, x), b.log(x)), over(b, 1, x))
    below = b.multiply(ratio(b, square, _Y1_SMALL_ABOVE, _Y1_SMALL_BELOW), x)
    below = b.add(below, times(b, logarithm, 2 / math.pi))
    even, odd = _modulus(b, x, (_P1_ABOVE, _P1_BELOW), (_Q1_ABOVE, _Q1_BELOW))
    phase = plus(b, x, -3 * math.pi / 4)
    wave = b.add(b.multiply(even, b.sin(phase)), b.multiply(odd, b.cos(phase)))
    return _from_zero(b, x, b.select(at_most(b, x, 5), below, _damped(b, wave, x)))


@elementwise("aten.special_spherical_bessel_j0.default")
def spherical_j0(b: Builder, x: Value) -> Value:
    """sin(x) / x, by its series below 0.5."""
    near = polynomial(b, b.multiply(x, x), _SPHERICAL)
    value = b.select(less(b, b.abs(x), 0.5), near, b.divide(b.sin(x), x))
    return b.select(equals(b, b.abs(x), math.inf), like(b, x, 0), value)


_Ratio = tuple[Sequence[float], Sequence[float]]


def _modulus(b: Builder, x: Value, even: _Ratio, odd: _Ratio) -> tuple[Value, Value]:
    """The two factors of Hankel's expansion, of powers of 5 / x."""
    inverse = over(b, 5, x)
    square = b.multiply(inverse, inverse)
    return ratio(b, square, *even), b.multiply(inverse, ratio(b, square, *odd))


def _damped(b: Builder, wave: Value, x: Value) -> Value:
    return b.divide(times(b, wave, math.sqrt(2 / math.pi)), b.sqrt(x))


def _from_zero(b: Builder, x: Value, value: Value) -> Value:
    return infinite_where(b, equals(b, x, 0), nan_where(b, less(b, x, 0), value), -1)
