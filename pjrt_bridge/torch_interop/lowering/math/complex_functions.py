"""Functions of complex numbers with parts that are zero, infinite or NaN, as in C99 (annex G.6).

ATen takes them from C's library. XLA multiplies the parts, which gives NaN beside infinities, and
for some functions a number beside NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.math.approximation import (
    equals,
    infinite_where,
    is_nan,
    less,
    like,
    nan_where,
    times,
)

Unary = Callable[[Builder, Value], Value]
ComplexParts = tuple[Value, Value]
"""The real and the imaginary part."""

_Repair = Callable[[Builder, ComplexParts, ComplexParts], ComplexParts]
"""Takes the parts of an argument and of XLA's result; gives those of the result."""


def parts(b: Builder, x: Value) -> ComplexParts:
    """The parts of a complex number."""
    return b.real(x), b.imag(x)


def scaled(b: Builder, x: Value, factor: float) -> Value:
    """`x * factor`, of a complex number part by part: a product has NaN beside infinities."""
    if not x.dtype.is_complex:
        return times(b, x, factor)
    return b.complex_(*(times(b, part, factor) for part in parts(b, x)))


def is_infinite(b: Builder, x: Value) -> Value:
    """Where a real number is infinite."""
    return equals(b, b.abs(x), math.inf)


def _is_not_finite(b: Builder, x: Value) -> Value:
    return b.not_(less(b, b.abs(x), math.inf))


def _repaired(emit: Unary, repair: _Repair) -> Unary:
    def function(b: Builder, x: Value) -> Value:
        made = emit(b, x)
        return b.complex_(*repair(b, parts(b, x), parts(b, made))) if x.dtype.is_complex else made

    return function


def _exp(b: Builder, given: ComplexParts, made: ComplexParts) -> ComplexParts:
    (x, y), (real, imag) = given, made
    size = b.exp(x)
    decided = b.and_(is_infinite(b, x), _is_not_finite(b, y))
    vanishes = b.and_(decided, less(b, x, 0))
    return b.select(decided, size, real), b.select(vanishes, size, imag)


def _log(b: Builder, given: ComplexParts, made: ComplexParts) -> ComplexParts:
    unbounded = b.or_(*(is_infinite(b, part) for part in given))
    return infinite_where(b, unbounded, made[0]), made[1]


def _sqrt(b: Builder, given: ComplexParts, made: ComplexParts) -> ComplexParts:
    (x, y), (real, imag) = given, made
    beside = is_infinite(b, y)
    left = b.and_(equals(b, x, -math.inf), is_nan(b, y))
    return (
        infinite_where(b, b.or_(beside, equals(b, x, math.inf)), real),
        b.select(beside, y, infinite_where(b, left, imag)),
    )


def _sine(b: Builder, grown: Value, turned: Value, made: ComplexParts) -> ComplexParts:
    """Of `sinh(grown) cos(turned)` and `cosh(grown) sin(turned)`."""
    first, second = made
    lost = _is_not_finite(b, turned)
    first = b.select(b.and_(equals(b, grown, 0), lost), grown, first)
    first = infinite_where(b, b.and_(is_infinite(b, grown), lost), first)
    return first, b.select(equals(b, turned, 0), turned, second)


def _cosine(b: Builder, grown: Value, turned: Value, made: ComplexParts) -> ComplexParts:
    """Of `cosh(grown) cos(turned)` and `sinh(grown) sin(turned)`."""
    first, second = made
    unbounded = b.and_(is_infinite(b, grown), _is_not_finite(b, turned))
    vanishes = b.or_(equals(b, grown, 0), equals(b, turned, 0))
    zero = like(b, second, 0)
    first = infinite_where(b, unbounded, first)
    return first, b.select(b.and_(vanishes, is_nan(b, second)), zero, second)


def _sinh(b: Builder, given: ComplexParts, made: ComplexParts) -> ComplexParts:
    return _sine(b, *given, made)


def _sin(b: Builder, given: ComplexParts, made: ComplexParts) -> ComplexParts:
    imag, real = _sine(b, given[1], given[0], (made[1], made[0]))
    return real, imag


def _cosh(b: Builder, given: ComplexParts, made: ComplexParts) -> ComplexParts:
    return _cosine(b, *given, made)


def _cos(b: Builder, given: ComplexParts, made: ComplexParts) -> ComplexParts:
    return _cosine(b, given[1], given[0], made)


def _straight(b: Builder, grown: Value, turned: Value, made: Value) -> Value:
    return b.select(b.and_(equals(b, grown, 0), _is_not_finite(b, turned)), grown, made)


def _tanh(b: Builder, given: ComplexParts, made: ComplexParts) -> ComplexParts:
    return _straight(b, *given, made[0]), made[1]


def _tan(b: Builder, given: ComplexParts, made: ComplexParts) -> ComplexParts:
    return made[0], _straight(b, given[1], given[0], made[1])


def _atan(b: Builder, given: ComplexParts, made: ComplexParts) -> ComplexParts:
    (x, y), (real, imag) = given, made
    unknown = b.or_(is_nan(b, x), b.and_(is_nan(b, y), less(b, b.abs(x), math.inf)))
    flat = b.and_(is_nan(b, x), equals(b, y, 0))
    return nan_where(b, unknown, real), b.select(flat, y, imag)


def _atanh(b: Builder, given: ComplexParts, made: ComplexParts) -> ComplexParts:
    x, y = given
    unknown = b.or_(is_nan(b, y), b.and_(is_nan(b, x), less(b, b.abs(y), math.inf)))
    return made[0], nan_where(b, unknown, made[1])


exp = _repaired(Builder.exp, _exp)
log = _repaired(Builder.log, _log)
sqrt = _repaired(Builder.sqrt, _sqrt)
sinh = _repaired(Builder.sinh, _sinh)
cosh = _repaired(Builder.cosh, _cosh)
tanh = _repaired(Builder.tanh, _tanh)
sin = _repaired(Builder.sin, _sin)
cos = _repaired(Builder.cos, _cos)
tan = _repaired(Builder.tan, _tan)
atan = _repaired(Builder.atan, _atan)
atanh = _repaired(Builder.atanh, _atanh)
