"""Element by element: every such operation of StableHLO, on every type that it is defined for.

Arguments come from the range where a result is of some use, plus zeros, infinities and NaN for
floats. Left out is what StableHLO leaves open: integer overflow, division by zero, denormal
numbers, and shifts by more than the width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.numerics import EXACT, Tolerance, build, check, numbers

ELEMENTWISE = Group("numerics")

_FLOATS = "float32 float64 float16 bfloat16"
_COMPLEX = "complex64 complex128"
_SIGNED = "int8 int16 int32 int64"
_UNSIGNED = "uint8 uint16 uint32 uint64"
_INTEGERS = f"{_SIGNED} {_UNSIGNED}"

# By IEEE 754 each of these has one right result.
_IEEE = Tolerance(signed_zeros=True)
# Correctly rounded on processors; accelerators refine an estimate.
_ROUNDED = Tolerance(ulps=2)
# "Implementation-defined" in StableHLO's words; this is what careful libraries keep.
_CLOSE = Tolerance(ulps=16)


@dataclass(frozen=True)
class _Operation:
    """An operation, and how it is tried.

    Attributes:
        name: of the Builder's method.
        types: element types.
        tolerance: of the results.
        low: least argument.
        high: greatest argument.
        special: add zeros, infinities and NaN to float arguments.
        extremes: add the least and the greatest number to integer arguments.
    """

    name: str
    types: str
    tolerance: Tolerance = EXACT
    low: float = -4
    high: float = 4
    special: bool = True
    extremes: bool = False


_UNARY = (
    _Operation("abs", f"{_FLOATS} {_SIGNED}", _IEEE, -100, 100),
    _Operation("abs", _COMPLEX, _CLOSE, special=False),
    _Operation("negate", f"{_FLOATS} {_SIGNED} {_COMPLEX}", _IEEE, -100, 100),
    _Operation("sign", f"{_FLOATS} {_SIGNED}", _IEEE, -100, 100),
    _Operation("floor", _FLOATS, _IEEE, -100, 100),
    _Operation("ceil", _FLOATS, _IEEE, -100, 100),
    _Operation("round_even", _FLOATS, _IEEE, -8, 8),
    _Operation("round_away", _FLOATS, _IEEE, -8, 8),
    _Operation("is_finite", _FLOATS, EXACT, -100, 100),
    _Operation("sqrt", _FLOATS, _ROUNDED, -1, 100),
    _Operation("rsqrt", _FLOATS, _CLOSE, -1, 100),
    _Operation("cbrt", _FLOATS, _CLOSE, -100, 100),
    _Operation("exp", _FLOATS, _CLOSE, -10, 10),
    _Operation("expm1", _FLOATS, _CLOSE),
    _Operation("log", _FLOATS, _CLOSE, -1, 100),
    _Operation("log1p", _FLOATS, _CLOSE, -0.9, 100),
    _Operation("sin", _FLOATS, _CLOSE, -20, 20),
    _Operation("cos", _FLOATS, _CLOSE, -20, 20),
    _Operation("tan", _FLOATS, Tolerance(32), -1.4, 1.4),
    _Operation("tanh", _FLOATS, _CLOSE),
    _Operation("logistic", _FLOATS, _CLOSE, -10, 10),
    *(
        _Operation(name, _COMPLEX, Tolerance(64), -2, 2, special=False)
        for name in ("sqrt", "rsqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh")
    ),
    _Operation("logistic", _COMPLEX, Tolerance(64), -2, 2, special=False),
    _Operation("real", _COMPLEX),
    _Operation("imag", _COMPLEX),
    _Operation("not_", f"bool {_INTEGERS}", EXACT, -(2**63), 2**63, extremes=True),
    _Operation("popcount", _INTEGERS, EXACT, -(2**63), 2**63, extremes=True),
    _Operation("count_leading_zeros", _INTEGERS, EXACT, -(2**63), 2**63, extremes=True),
)

_BINARY = (
    _Operation("add", f"{_FLOATS} {_INTEGERS} bool", _IEEE, -50, 50),
    _Operation("subtract", f"{_FLOATS} {_SIGNED}", _IEEE, -50, 50),
    _Operation("multiply", f"{_FLOATS} {_INTEGERS} bool", _IEEE, -10, 10),
    _Operation("divide", _FLOATS, _ROUNDED, -50, 50),
    _Operation("remainder", _FLOATS, EXACT, -50, 50, special=False),
    _Operation("power", _FLOATS, Tolerance(64), 0.1, 4, special=False),
    _Operation("atan2", _FLOATS, _CLOSE, -4, 4, special=False),
    _Operation("maximum", f"{_FLOATS} {_INTEGERS} bool", EXACT, -100, 100, extremes=True),
    _Operation("minimum", f"{_FLOATS} {_INTEGERS} bool", EXACT, -100, 100, extremes=True),
    *(
        _Operation(name, f"{_INTEGERS} bool", EXACT, -(2**63), 2**63, extremes=True)
        for name in ("and_", "or_", "xor")
    ),
    _Operation("add", _COMPLEX, _ROUNDED, special=False),
    _Operation("subtract", _COMPLEX, _ROUNDED, special=False),
    _Operation("multiply", _COMPLEX, _CLOSE, special=False),
    _Operation("divide", _COMPLEX, _CLOSE, special=False),
    _Operation("power", _COMPLEX, Tolerance(256), 0.5, 2, special=False),
    _Operation("complex_", "float32 float64", _IEEE),
)

_COMPARED = f"{_FLOATS} {_INTEGERS} bool"
_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.5)


def _arguments(operation: _Operation, dtype: DType, seed: int, count: int = 120) -> Array:
    values = numbers(dtype, count, low=operation.low, high=operation.high, seed=seed)
    if dtype.is_float and operation.special:
        special = np.array(_SPECIAL, dtype.numpy)
        # Each with each, where there are two arguments.
        repeated = np.repeat(special, 10) if seed % 2 else np.tile(special, 10)
        values = np.concatenate([values, repeated])
    if dtype.is_integer and operation.extremes:
        limits = np.iinfo(dtype.numpy)
        extremes = np.array([limits.min, limits.max, 0, 1], dtype.numpy)
        repeated = np.repeat(extremes, 4) if seed % 2 else np.tile(extremes, 4)
        values = np.concatenate([values, repeated])
    return values


def _add(operation: _Operation, arity: int) -> None:
    for name in operation.types.split():
        dtype = dtypes.of(name)

        def function(context: Context, dtype: DType = dtype) -> None:
            arrays = [_arguments(operation, dtype, seed) for seed in range(arity)]
            program = build(lambda b, *xs: getattr(b, operation.name)(*xs), arrays)
            check(context.client, program, arrays, operation.tolerance)

        label = operation.name.removesuffix("_")
        sentence = f"The operation {label} computes what StableHLO says: {name}."
        ELEMENTWISE.add(f"{label}.{name}", sentence, function)


for _one in _UNARY:
    _add(_one, 1)
for _one in _BINARY:
    _add(_one, 2)


@ELEMENTWISE.each(_COMPARED.split())
def compare(context: Context, name: str) -> None:
    """Comparisons of all six directions are right, with NaN unequal to everything."""
    dtype = dtypes.of(name)
    operation = _Operation("compare", name, low=-3, high=3, extremes=True)
    arrays = [_arguments(operation, dtype, seed) for seed in range(2)]

    def body(b: Builder, x: Value, y: Value) -> list[Value]:
        return [b.compare(x, y, direction) for direction in ("EQ", "NE", "LT", "LE", "GT", "GE")]

    check(context.client, build(body, arrays), arrays)


@ELEMENTWISE.each(_COMPLEX.split())
def compare_complex(context: Context, name: str) -> None:
    """Complex numbers are equal where both parts are."""
    x = np.array([1 + 2j, 1 + 2j, 1 - 2j, 0], dtypes.of(name).numpy)
    y = np.array([1 + 2j, 1 + 3j, 1 + 2j, 0], x.dtype)
    program = build(lambda b, x, y: [b.compare(x, y, "EQ"), b.compare(x, y, "NE")], [x, y])
    check(context.client, program, [x, y])


@ELEMENTWISE.each(_FLOATS.split())
def compare_total_order(context: Context, name: str) -> None:
    """The total order puts -NaN first, then -inf, ..., -0, 0, ..., inf and NaN."""
    dtype = dtypes.of(name)
    ordered = np.array([-np.inf, -1.5, -0.0, 0.0, 2, np.inf], dtype.numpy)
    nan = np.array([np.nan], dtype.numpy)
    ordered = np.concatenate([np.copysign(nan, -1), ordered, np.abs(nan)]).astype(dtype.numpy)
    x, y = np.repeat(ordered, 8), np.tile(ordered, 8)
    rank = np.arange(8)
    left, right = np.repeat(rank, 8), np.tile(rank, 8)

    def body(b: Builder, x: Value, y: Value) -> list[Value]:
        return [b.compare(x, y, direction, total_order=True) for direction in ("LT", "EQ")]

    check(
        context.client,
        build(body, [x, y]),
        [x, y],
        oracle=lambda x, y: [left < right, left == right],
    )


@ELEMENTWISE.each(_INTEGERS.split())
def divide_integers(context: Context, name: str) -> None:
    """Quotients of integers truncate towards zero, remainders have the sign of the dividend."""
    dtype = dtypes.of(name)
    x = numbers(dtype, 100, low=-100, high=100)
    y = numbers(dtype, 100, low=-9, high=9, seed=1)
    y[y == 0] = 3
    program = build(lambda b, x, y: [b.divide(x, y), b.remainder(x, y)], [x, y])
    check(context.client, program, [x, y])


@ELEMENTWISE.each(_INTEGERS.split())
def power_integers(context: Context, name: str) -> None:
    """Powers of integers are exact."""
    dtype = dtypes.of(name)
    x, y = numbers(dtype, 50, low=-3, high=3), numbers(dtype, 50, low=0, high=4, seed=1)
    check(context.client, build(lambda b, x, y: b.power(x, y), [x, y]), [x, y])


@ELEMENTWISE.each(_INTEGERS.split())
def shifts(context: Context, name: str) -> None:
    """Shifts by less than the width: to the left, to the right with zeros, and with the sign."""
    dtype = dtypes.of(name)
    x = numbers(dtype, 100, low=-(2**63), high=2**63)
    y = numbers(dtype, 100, low=0, high=dtype.bits - 1, seed=1)

    def body(b: Builder, x: Value, y: Value) -> list[Value]:
        return [
            b.shift_left(x, y),
            b.shift_right_logical(x, y),
            b.shift_right_arithmetic(x, y),
        ]

    check(context.client, build(body, [x, y]), [x, y])


@ELEMENTWISE.each(f"{_FLOATS} {_INTEGERS} {_COMPLEX} bool".split())
def select(context: Context, name: str) -> None:
    """The operation select takes elements by a mask, and wholes by a scalar."""
    dtype = dtypes.of(name)
    mask = numbers(dtypes.of("bool"), 40)
    x, y = numbers(dtype, 40), numbers(dtype, 40, seed=1)
    one = np.array(True)

    def body(b: Builder, mask: Value, one: Value, x: Value, y: Value) -> list[Value]:
        return [b.select(mask, x, y), b.select(one, x, y)]

    check(context.client, build(body, [mask, one, x, y]), [mask, one, x, y], _IEEE)


@ELEMENTWISE.each(f"{_FLOATS} {_INTEGERS}".split())
def clamp(context: Context, name: str) -> None:
    """The operation clamp limits by scalars and by tensors."""
    dtype = dtypes.of(name)
    x = numbers(dtype, 40, low=-8, high=8)
    low, high = numbers(dtype, 40, low=-4, high=0), numbers(dtype, 40, low=1, high=4)

    def body(b: Builder, x: Value, low: Value, high: Value) -> list[Value]:
        ends = [b.constant(1, dtype), b.constant(3, dtype)]
        return [b.clamp(low, x, high), b.clamp(ends[0], x, ends[1])]

    check(context.client, build(body, [x, low, high]), [x, low, high])


@ELEMENTWISE.each(["float32.5.10", "float32.8.7", "float32.4.3", "float64.8.23", "float16.5.2"])
def reduce_precision(context: Context, case: str) -> None:
    """Rounding through a format with fewer bits is exact, ties to even."""
    name, exponent, mantissa = case.split(".")
    x = numbers(dtypes.of(name), 200, low=-100, high=100)
    program = build(lambda b, x: b.reduce_precision(x, int(exponent), int(mantissa)), [x])
    check(context.client, program, [x], _IEEE)
