"""The Airy function Ai.

Maclaurin's series (DLMF 9.4.1) around 0 and, beyond +-2.09, rational approximations of Cephes
(Moshier, "Methods and Programs for Mathematical Functions", 1989; airy.c). ATen semantics kept:
infinities give NaN, more than 103.892 gives 0. Kept as well is that two of ATen's denominators
lack the leading 1 that Cephes' have, which makes errors of up to 3e-6 in double precision.
"""

from __future__ import annotations

import math

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.math.approximation import (
    at_most,
    elementwise,
    equals,
    less,
    like,
    nan_where,
    over,
    plus,
    polynomial,
    ratio,
    times,
)

_DECAY_ABOVE = (
    0.346538101525629,
    12.007595273964581,
    76.27960536152345,
    168.08922493463058,
    159.75639135016442,
    70.53609068404442,
    14.026469116338967,
    1.0,
)
_DECAY_BELOW = (
    0.5675945326387702,
    14.75625625848472,
    84.51389701414746,
    177.31808814540045,
    164.2346928715297,
    71.47784008255756,
    14.095913560783403,
    1.0,
)
_SINE_ABOVE = (
    -0.1316963234183318,
    -0.6264565444319123,
    -0.6931580360369335,
    -0.2797799815451191,
    -0.04919001326095003,
    -0.004062659235948854,
    -0.0001592764962392621,
    -2.776491081552329e-06,
    -1.6778769848911465e-08,
)
_SINE_BELOW = (
    13.356042070655324,
    32.682503279522464,
    26.736704094149957,
    9.187074029072596,
    1.4752914677166642,
    0.11568717379518804,
    0.004402916416152112,
    7.547203482874142e-05,
    4.5185009297058035e-07,
)
_COSINE_ABOVE = (
    0.01973399320916857,
    0.39110302961568827,
    1.0657989759959559,
    0.9391692298166502,
    0.35146565610554764,
    0.06338889196289255,
    0.005858041130483885,
    0.000282851600836737,
    6.98793669997261e-06,
    8.117892395543892e-08,
    3.415517847659236e-10,
)
_COSINE_BELOW = (
    9.30892908077442,
    19.835292871831214,
    15.564662893286462,
    5.476860694229755,
    0.9542936116189619,
    0.08645808263523921,
    0.004126565238242226,
    0.00010125908511650914,
    1.1716673321441352e-06,
    4.9183457006293e-09,
)
_AT_ZERO = 0.3550280538878172
"""Ai(0)."""

_SLOPE = -0.2588194037928068
"""Ai'(0)."""


def _series(first: int) -> tuple[float, ...]:
    """Coefficients of powers of x cubed: each over the two factors between it and the last."""
    found = [1.0]
    for power in range(first + 3, first + 3 * 20, 3):
        found.append(found[-1] / (power * (power - 1)))
    return tuple(reversed(found))


@elementwise("aten.special_airy_ai.default")
def airy(b: Builder, x: Value) -> Value:
    """Ai."""
    cube = b.multiply(b.multiply(x, x), x)
    even = times(b, polynomial(b, cube, _series(0)), _AT_ZERO)
    middle = b.add(even, times(b, b.multiply(x, polynomial(b, cube, _series(1))), _SLOPE))
    size = b.abs(x)
    exponent = times(b, b.multiply(size, b.sqrt(size)), 2 / 3)
    inverse = over(b, 1, exponent)
    scale = times(b, b.rsqrt(b.sqrt(size)), 1 / math.sqrt(math.pi))
    decay = times(b, ratio(b, inverse, _DECAY_ABOVE, _DECAY_BELOW), 0.5)
    decay = b.divide(b.multiply(scale, decay), b.exp(exponent))
    square = b.multiply(inverse, inverse)
    sine = plus(b, b.multiply(square, ratio(b, square, _SINE_ABOVE, _SINE_BELOW)), 1)
    cosine = b.multiply(inverse, ratio(b, square, _COSINE_ABOVE, _COSINE_BELOW))
    phase = plus(b, exponent, math.pi / 4)
    wave = b.subtract(b.multiply(sine, b.sin(phase)), b.multiply(cosine, b.cos(phase)))
    value = b.select(less(b, x, -2.09), b.multiply(scale, wave), middle)
    value = b.select(less(b, x, 2.09), value, decay)
    value = b.select(at_most(b, x, 103.892), value, like(b, x, 0))
    value = b.select(b.compare(x, x, "NE"), x, value)
    return nan_where(b, equals(b, size, math.inf), value)
