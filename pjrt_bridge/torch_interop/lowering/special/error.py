"""The scaled complementary error function and the quantiles of the normal distribution.

Rational approximations of Cephes (Moshier, "Methods and Programs for Mathematical Functions",
1989; ndtr.c and ndtri.c). ATen semantics kept: `erfcx` grows like 2 exp(x * x) to the left and
falls like 1 / x to the right; `ndtri` is -inf at 0, inf at 1 and NaN outside of them.
"""

from __future__ import annotations

import math

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
    ratio,
    times,
)

_NEAR_ABOVE = (
    2.461969814735305e-10,
    0.5641895648310688,
    7.463210564422699,
    48.63719709856814,
    196.5208329560771,
    526.4451949954773,
    934.5285271719576,
    1027.5518868951572,
    557.5353353693994,
)
_NEAR_BELOW = (
    1.0,
    13.228195115474499,
    86.70721408859897,
    354.9377788878199,
    975.7085017432055,
    1823.9091668790973,
    2246.3376081871097,
    1656.6630919416134,
    557.5353408177277,
)
_FURTHER_ABOVE = (
    0.5641895835477551,
    1.275366707599781,
    5.019050422511805,
    6.160210979930536,
    7.4097426995044895,
    2.9788666537210022,
)
_FURTHER_BELOW = (
    1.0,
    2.2605286322011726,
    9.396035249380015,
    12.048953980809666,
    17.08144507475659,
    9.608968090632859,
    3.369076451000815,
)

_MIDDLE_ABOVE = (
    -59.96335010141079,
    98.00107541859997,
    -56.67628574690703,
    13.931260938727968,
    -1.2391658386738125,
)
_MIDDLE_BELOW = (
    1.0,
    1.9544885833814176,
    4.676279128988815,
    86.36024213908905,
    -225.46268785411937,
    200.26021238006066,
    -82.03722561683334,
    15.90562251262117,
    -1.1833162112133,
)
_TAIL_ABOVE = (
    4.0554489230596245,
    31.525109459989388,
    57.16281922464213,
    44.08050738932008,
    14.684956192885803,
    2.1866330685079025,
    -0.1402560791713545,
    -0.03504246268278482,
    -0.0008574567851546854,
)
_TAIL_BELOW = (
    1.0,
    15.779988325646675,
    45.39076351288792,
    41.3172038254672,
    15.04253856929075,
    2.504649462083094,
    -0.14218292285478779,
    -0.03808064076915783,
    -0.0009332594808954574,
)
_FAR_ABOVE = (
    3.2377489177694603,
    6.915228890689842,
    3.9388102529247444,
    1.3330346081580755,
    0.20148538954917908,
    0.012371663481782003,
    0.00030158155350823543,
    2.6580697468673755e-06,
    6.239745391849833e-09,
)
_FAR_BELOW = (
    1.0,
    6.02427039364742,
    3.6798356385616087,
    1.3770209948908132,
    0.21623699359449663,
    0.013420400608854318,
    0.00032801446468212774,
    2.8924786474538068e-06,
    6.790194080099813e-09,
)
_TAIL = math.exp(-2)


@elementwise("aten.special_erfcx.default")
def erfcx(b: Builder, x: Value) -> Value:
    """exp(x * x) erfc(x)."""
    size = b.abs(x)
    square = b.exp(b.multiply(x, x))
    near = ratio(b, size, _NEAR_ABOVE, _NEAR_BELOW)
    further = ratio(b, size, _FURTHER_ABOVE, _FURTHER_BELOW)
    # Where powers would overflow, the first term is exact.
    furthest = over(b, 1 / math.sqrt(math.pi), size)
    right = b.select(less(b, size, 8), near, b.select(less(b, size, 1e4), further, furthest))
    right = b.select(less(b, size, 1), b.multiply(square, b.erfc(size)), right)
    return b.select(less(b, x, 0), b.subtract(times(b, square, 2), right), right)


@elementwise("aten.special_ndtri.default")
def ndtri(b: Builder, x: Value) -> Value:
    """The number below which a standard normal variable lies with probability `x`."""
    upper = b.compare(x, minus(b, 1, like(b, x, _TAIL)), "GT")
    tail = b.select(upper, minus(b, 1, x), x)
    centered = plus(b, tail, -0.5)
    square = b.multiply(centered, centered)
    bend = b.multiply(square, ratio(b, square, _MIDDLE_ABOVE, _MIDDLE_BELOW))
    middle = b.add(centered, b.multiply(centered, bend))
    middle = times(b, middle, math.sqrt(2 * math.pi))
    depth = b.sqrt(times(b, b.log(tail), -2))
    first = b.subtract(depth, b.divide(b.log(depth), depth))
    inverse = over(b, 1, depth)
    near = ratio(b, inverse, _TAIL_ABOVE, _TAIL_BELOW)
    far = ratio(b, inverse, _FAR_ABOVE, _FAR_BELOW)
    bend = b.multiply(inverse, b.select(less(b, depth, 8), near, far))
    outer = b.subtract(first, bend)
    outer = b.select(upper, outer, b.negate(outer))
    value = b.select(b.compare(tail, like(b, x, _TAIL), "GT"), middle, outer)
    outside = b.or_(less(b, x, 0), b.not_(at_most(b, x, 1)))
    value = nan_where(b, outside, value)
    value = infinite_where(b, equals(b, x, 1), value)
    return infinite_where(b, equals(b, x, 0), value, -1)
