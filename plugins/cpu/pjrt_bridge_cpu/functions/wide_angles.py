"""Sines, cosines and tangents of float64, by the rest of the angle beyond quarter turns.

Beyond a million quarter turns they are the compiler's, which calls the C library for each element:
there a rest needs all digits of `2 / pi`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge_cpu.functions.arithmetic import has_bit, holds_anywhere, like, polynomial, signed

_TURN = (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
"""The quarter turn: 33 of its digits, the next 33, and the rest (fdlibm, e_rem_pio2.c).

The product of one of the first two with a number of 20 digits is exact.
"""

_MOST = 2.0**20
"""Quarter turns, of which all have so many digits."""

_SINE = (
    *(-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04),
    *(2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10),
)
"""Of `r**3`, `r**5` and so on between -pi/4 and pi/4 (fdlibm, k_sin.c)."""

_COSINE = (
    *(4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05),
    *(-2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11),
)
"""Of `r**4`, `r**6` and so on there (fdlibm, k_cos.c)."""


def wide_sine(b: Builder, x: Value) -> Value:
    """`sin(x)`."""

    def found() -> Value:
        quarter, sine, cosine = _both(b, x)
        either = b.select(has_bit(b, quarter, 1), cosine, sine)
        return _itself_near_zero(b, x, signed(b, has_bit(b, quarter, 2), either))

    return _of_few_turns(b, x, found, b.sin)


def wide_cosine(b: Builder, x: Value) -> Value:
    """`cos(x)`: negative in the second and the third quarter."""

    def found() -> Value:
        quarter, sine, cosine = _both(b, x)
        ahead = b.add(quarter, b.full(x.shape, 1, "int32"))
        return signed(b, has_bit(b, ahead, 2), b.select(has_bit(b, quarter, 1), sine, cosine))

    return _of_few_turns(b, x, found, b.cos)


def wide_tangent(b: Builder, x: Value) -> Value:
    """`tan(x)`: that of the rest, or its negative reciprocal in odd quarters."""

    def found() -> Value:
        quarter, sine, cosine = _both(b, x)
        odd = has_bit(b, quarter, 1)
        ratio = b.divide(b.select(odd, cosine, sine), b.select(odd, sine, cosine))
        return _itself_near_zero(b, x, signed(b, odd, ratio))

    return _of_few_turns(b, x, found, b.tan)


def _of_few_turns(
    b: Builder, x: Value, found: Callable[[], Value], general: Callable[[Value], Value]
) -> Value:
    """What is found where no angle has too many turns; else what the compiler has for all."""
    many = holds_anywhere(b, b.compare(b.abs(x), like(b, x, _MOST * _TURN[0]), "GE"))
    # Of a choice the compiler would compute both sides.
    return b.while_(
        (found(), many),
        lambda at: at[1],
        lambda _: (general(x), b.full((), False, many.dtype)),
    )[0]


def _itself_near_zero(b: Builder, x: Value, found: Value) -> Value:
    """Zeros keep their sign, and numbers below the normal ones their digits."""
    return b.select(b.compare(b.abs(x), like(b, x, 2.0**-27), "LT"), x, found)


def _both(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """The nearest multiple of a quarter turn; sine and cosine of the angle beyond it."""
    count = b.round_even(b.multiply(x, like(b, x, 2 / math.pi)))
    first, second, third = (b.multiply(count, like(b, x, part)) for part in _TURN)
    above = b.subtract(x, first)
    near = b.subtract(above, second)
    # What rounding took away, and the digits behind it.
    below = b.subtract(b.subtract(b.subtract(above, near), second), third)
    rest = b.add(near, below)
    low = b.add(b.subtract(near, rest), below)

    one, half = like(b, x, 1), like(b, x, 0.5)
    square = b.multiply(rest, rest)
    cube = b.multiply(square, rest)
    lead, *others = _SINE
    inner = b.subtract(b.multiply(half, low), b.multiply(cube, polynomial(b, square, others)))
    tail = b.subtract(
        b.subtract(b.multiply(square, inner), low), b.multiply(cube, like(b, x, lead))
    )
    sine = b.subtract(rest, tail)

    halved = b.multiply(half, square)
    nearly = b.subtract(one, halved)
    bent = b.multiply(square, b.multiply(square, polynomial(b, square, _COSINE)))
    lost = b.subtract(b.subtract(one, nearly), halved)
    cosine = b.add(nearly, b.add(lost, b.subtract(bent, b.multiply(rest, low))))
    return b.convert(count, "int32"), sine, cosine
