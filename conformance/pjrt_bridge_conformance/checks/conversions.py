"""Conversions between element types, by value and by bits, for every type there is."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.numerics import (
    UNSIGNED_FLOAT,
    Oracle,
    Tolerance,
    build,
    check,
    numbers,
)

CONVERSIONS = Group("numerics")

_ZEROS = Tolerance(signed_zeros=True)
_REAL = [dtype for dtype in dtypes.ALL if not dtype.is_complex]
_INTEGERS = [dtype for dtype in dtypes.ALL if dtype.is_integer and dtype.bits >= 8]
_SMALL_FLOATS = [dtype for dtype in dtypes.ALL if dtype.is_float and dtype.bits < 32]


def every(dtype: DType) -> Array:
    """Every value of a type of up to 16 bits."""
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.is_integer and dtype.bits < 8:
        limits = ml_dtypes.iinfo(dtype.numpy)  # type: ignore[no-untyped-call]
        return np.arange(limits.min, limits.max + 1).astype(dtype.numpy)
    width = dtype.itemsize
    return np.arange(2**dtype.bits, dtype=f"u{width}").view(dtype.numpy)


def _samples(dtype: DType) -> Array:
    if dtype.bits <= 16:
        return every(dtype)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        ends = np.array([limits.min, limits.max, 0, 1], dtype.numpy)
        return np.concatenate([numbers(dtype, 60, low=-(2**63), high=2**63), ends])
    ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], dtype.numpy)
    return np.concatenate([numbers(dtype, 60, low=-1e6, high=1e6), ends])


@CONVERSIONS.each(_REAL)
def to_float32(context: Context, dtype: DType) -> None:
    """Values of every type become float32, rounded to the nearest, ties to even."""
    x = _samples(dtype)
    program = build(lambda b, x: b.convert(x, "float32"), [x])
    check(context.client, program, [x], _ZEROS, _oracle(dtype, "float32"))


@CONVERSIONS.each(_SMALL_FLOATS)
def from_float32(context: Context, dtype: DType) -> None:
    """Values of float32 become smaller floats, rounded to the nearest, ties to even."""
    middle = _ties(dtype)
    x = np.concatenate([middle, numbers(dtypes.of("float32"), 60, low=0.1)])
    if dtype.name != UNSIGNED_FLOAT:
        x = np.concatenate([x, -x])
    program = build(lambda b, x: b.convert(x, dtype), [x])
    check(context.client, program, [x], _ZEROS, _oracle(dtype, dtype.name))


def _oracle(dtype: DType, target: str) -> Oracle | None:
    """NumPy's conversion for the type that the interpreter takes for a signed one."""
    if dtype.name != UNSIGNED_FLOAT:
        return None
    return lambda x: np.asarray(x.astype(dtypes.of(target).numpy))


def _ties(dtype: DType) -> Array:
    """Numbers in the middle between two neighbours of a type, and next to it."""
    values = every(dtype).astype(np.float32)
    values = np.unique(values[np.isfinite(values) & (values > 0)])
    # Denormal numbers may count as zero.
    values = values[values >= 2.0**-120]
    step = max(len(values) // 64, 1)
    middle = ((values[:-1].astype(np.float64) + values[1:]) / 2)[::step].astype(np.float32)
    return np.concatenate([middle, np.nextafter(middle, np.float32(0)), values[::step]])


@CONVERSIONS.each([f"{a}.{b}" for a, b in product(("int8", "int32", "uint8", "int64"), repeat=2)])
def convert_integers(context: Context, case: str) -> None:
    """Integers that the other type has keep their value."""
    source, target = map(dtypes.of, case.split("."))
    low = 0 if target.is_unsigned_integer else -100
    x = numbers(source, 60, low=low, high=100)
    check(context.client, build(lambda b, x: b.convert(x, target), [x]), [x])


@CONVERSIONS.each(_INTEGERS)
def float_to_integer(context: Context, dtype: DType) -> None:
    """Floats within an integer type's range are truncated towards zero."""
    low = 0 if dtype.is_unsigned_integer else -100
    x = numbers(dtypes.of("float32"), 60, low=low, high=100)
    check(context.client, build(lambda b, x: b.convert(x, dtype), [x]), [x])


@CONVERSIONS.each([dtype for dtype in _REAL if not dtype.is_bool])
def to_bool(context: Context, dtype: DType) -> None:
    """What is not zero is true."""
    x = numbers(dtype, 40, low=-2, high=2)
    if dtype.name != UNSIGNED_FLOAT:
        x[::5] = 0
    program = build(lambda b, x: b.convert(x, "bool"), [x])
    check(context.client, program, [x], oracle=_oracle(dtype, "bool"))


@CONVERSIONS.each(["float32.complex64", "complex64.complex128", "complex128.complex64"])
def convert_complex(context: Context, case: str) -> None:
    """Numbers become complex numbers, and these change their precision."""
    source, target = map(dtypes.of, case.split("."))
    x = numbers(source, 60)
    check(context.client, build(lambda b, x: b.convert(x, target), [x]), [x])


_BITS = (
    "float32.int32",
    "int32.float32",
    "float64.uint64",
    "bfloat16.uint16",
    "float16.int16",
    "float8_e5m2.uint8",
    "float8_e4m3fn.int8",
    "float32.uint16",
    "uint16.float32",
    "int64.int8",
    "uint8.int32",
    "int4.uint4",
    "uint8.int4",
    "uint4.int8",
)


@CONVERSIONS.each(_BITS)
def bitcast(context: Context, case: str) -> None:
    """Bits become those of another type, of the same width, narrower or wider."""
    source, target = map(dtypes.of, case.split("."))
    # Bit patterns of a float may be NaN, whose bits need not survive; numbers are none.
    shape = (6, max(target.bits // source.bits, 1))
    x = numbers(source, *shape, low=1, high=100)
    if target.bits <= source.bits:
        x = x.reshape(6)
    if target.is_float and target.bits > source.bits:
        x = numbers(target, 6).view(source.numpy).reshape(shape)
    check(context.client, build(lambda b, x: b.bitcast_convert(x, target), [x]), [x])
