"""New tensors from numbers, and conversions between element types.

ATen semantics kept: the output's type is the promised one; a float becomes an integer by
truncation, any number a bool by `x != 0`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import (
    FLOAT32,
    INT64,
    Context,
    Operand,
    Scalar,
    compute_type,
    number,
)
from pjrt_bridge.torch_interop.lowering.indexing.reading import repeated
from pjrt_bridge.torch_interop.lowering.math.scan import scan
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering
from pjrt_bridge.torch_interop.lowering.shaping.slicing import take
from pjrt_bridge.torch_interop.tensors import torch_dtype
from pjrt_bridge.torch_interop.uninitialized import filling, fills

FLOAT64 = dtypes.of("float64")

_EXACT_FLOAT_INTEGERS = {16: 1 << 8, 32: 1 << 24, 64: 1 << 53}
"""Largest magnitude below which every integer is a float of so many bits (bfloat16's for 16)."""


@lowering(
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_permuted.default",
    "aten.empty_strided.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
)
def empty(c: Context, *args: object, **kwargs: object) -> Value:
    """Zeros in the output's shape, or what torch's settings want to be filled in."""
    if not fills():
        return c.zeros(0)
    return c.full(c.output.shape, filling(torch_dtype(c.output.dtype)), c.output.dtype)


@lowering(
    "aten.new_zeros.default",
    "aten.zeros.default",
    "aten.zeros_like.default",
)
def zeros(c: Context, *args: object, **kwargs: object) -> Value:
    """Zeros in the output's shape."""
    return c.zeros(0)


@lowering("aten._new_zeros_with_same_feature_meta.default")
def zeros_of_tangents(c: Context, *args: object, **kwargs: object) -> Value:
    """Zeros with batch dimensions of one tensor before the shape of another."""
    return c.zeros(0)


@lowering("aten._efficientzerotensor.default")
def efficient_zeros(c: Context, *args: object, **kwargs: object) -> Value:
    """Zeros, stored here like others."""
    return c.zeros(0)


@lowering("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(c: Context, *args: object, **kwargs: object) -> Value:
    """Ones in the output's shape."""
    return c.full(c.output.shape, 1, c.output.dtype)


@lowering(
    "aten.full.default",
    "aten.full_like.default",
    "aten.new_full.default",
)
def full(c: Context, like: object, *args: Scalar, **kwargs: object) -> Value:
    """One number in the output's shape: `full(size, value)`, `new_full(x, size, value)`."""
    value = args[-1]
    return c.full(c.output.shape, value, c.output.dtype)


@lowering("aten.scalar_tensor.default", "prims.scalar_tensor.default")
def scalar_tensor(c: Context, value: Scalar, **kwargs: object) -> Value:
    """A 0-d tensor."""
    return c.full((), value, c.output.dtype)


@lowering("aten.fill.Scalar", "aten.fill.Tensor")
def fill(c: Context, x: Value, value: Value | Scalar) -> Value:
    """One number, or one 0-d tensor, in the shape and type of `x`."""
    return c.operand(value, x.dtype, x.shape)


@lowering("aten.arange.default")
def arange(c: Context, end: Scalar, **kwargs: object) -> Value:
    """`arange(0, end, 1)`."""
    return arange_step(c, 0, end)


@lowering("aten.arange.start")
def arange_start(c: Context, start: Scalar, end: Scalar, **kwargs: object) -> Value:
    """`arange(start, end, 1)`."""
    return arange_step(c, start, end)


@lowering("aten.arange.start_step")
def arange_step(
    c: Context, start: Scalar, end: Scalar, step: Scalar = 1, **kwargs: object
) -> Value:
    """`start + i * step` for each i of the output.

    Whole numbers are computed on the device. Fractions, which are rare and short, are constants of
    the program, because ATen computes them in wider precision.
    """
    out = c.output
    dtype = out.dtype
    if dtype.is_integer:
        return _count(c, number(start, INT64), number(step, INT64))
    count = out.shape[0]
    if isinstance(start, complex) or isinstance(step, complex):
        raise NotLowerable(f"arange from {start} in steps of {step}")
    whole = float(start).is_integer() and float(step).is_integer()
    if whole and max(abs(start), abs(start + count * step)) <= _EXACT_FLOAT_INTEGERS[dtype.bits]:
        return _count(c, start, step)
    # By NumPy: while a graph is lowered torch's operators return fake tensors.
    counter = np.arange(count, dtype="float32" if dtype.bits == 16 else "float64")
    steps = counter * float(step) + float(start)
    return c.b.constant(steps.astype(dtype.numpy), dtype)


def _count(c: Context, start: Scalar, step: Scalar) -> Value:
    shape = c.output.shape
    counter = c.b.iota(shape, 0, INT64)
    scaled = c.b.multiply(counter, c.full(shape, step, INT64))
    return c.result(c.b.add(scaled, c.full(shape, start, INT64)))


@lowering("aten.linspace.default", values=("start", "end"))
def linspace(c: Context, start: Operand, end: Operand, steps: int, **kwargs: object) -> Value:
    """`steps` numbers from `start` to `end`, computed from the nearer end.

    As in ATen the ends are numbers of the output's type before anything is computed, and integers
    step in double precision. Floats are constants of the program, rounded as ATen rounds them,
    unless they are many.
    """
    out = c.output
    if isinstance(start, Value) or isinstance(end, Value):
        return _spaced_by_values(c, start, start if steps == 1 else end)
    wide = FLOAT64 if out.dtype.is_integer else compute_type(out.dtype)
    first, last = (number(value, out.dtype) for value in (start, start if steps == 1 else end))
    if out.dtype.is_float and steps <= _MOST_CONSTANTS:
        return c.b.constant(_spaced(first, last, steps, out.dtype), out.dtype)
    step = (last - first) / max(steps - 1, 1)
    from_start = c.cast(c.b.iota(out.shape, 0, INT64), wide)
    from_end = c.b.subtract(c.full(out.shape, steps - 1, wide), from_start)
    stride = c.full(out.shape, step, wide)
    forwards = c.b.add(c.full(out.shape, first, wide), c.b.multiply(stride, from_start))
    backwards = c.b.subtract(c.full(out.shape, last, wide), c.b.multiply(stride, from_end))
    near = c.b.compare(c.b.iota(out.shape, 0, INT64), c.full(out.shape, steps // 2, INT64), "LT")
    return c.result(c.b.select(near, forwards, backwards))


def _spaced_by_values(c: Context, start: Operand, end: Operand) -> Value:
    """`linspace` between numbers of the call, in double precision, as `_spaced` has it."""
    b, dtype = c.b, c.output.dtype
    if dtype != FLOAT32 and not dtype.is_integer:
        raise NotLowerable(f"linspace of {dtype} between numbers that are not known")
    shape = c.output.shape
    (steps,) = shape
    # A float's step is rounded to its type, an integer's is not.
    kind = FLOAT32 if dtype == FLOAT32 else FLOAT64
    low, high = (c.cast(c.full((), item, dtype), kind) for item in (start, end))
    step = b.divide(b.subtract(high, low), c.full((), max(steps - 1, 1), kind))
    first, last, stride = (c.full(shape, item, FLOAT64) for item in (low, high, step))
    place = b.iota(shape, 0, FLOAT64)
    forwards = b.add(first, b.multiply(stride, place))
    left = b.subtract(c.full(shape, steps - 1, FLOAT64), place)
    backwards = b.subtract(last, b.multiply(stride, left))
    near = b.compare(place, c.full(shape, steps // 2, FLOAT64), "LT")
    return c.result(b.select(near, forwards, backwards))


_MOST_CONSTANTS = 1 << 16


def _spaced(first: Scalar, last: Scalar, steps: int, dtype: DType) -> np.ndarray:
    """Floats as ATen's `linspace` has them (`RangeFactoriesKernel.cpp`).

    Types of 16 bits are rounded after each operation; others are multiplied and added in one, here
    in a wider type.
    """
    kind = dtype.numpy
    wide: Any = {4: np.dtype(np.float64), 8: np.dtype(np.longdouble)}.get(kind.itemsize, kind)
    counter = np.arange(steps)
    low, high, count = (np.asarray(item).astype(kind) for item in (first, last, max(steps - 1, 1)))
    # Numbers that are too large for the type become infinite, as in ATen.
    with np.errstate(all="ignore"):
        step = ((high - low) / count).astype(kind).astype(wide)
        upwards = low.astype(wide) + step * counter.astype(wide)
        downwards = high.astype(wide) - step * (steps - 1 - counter).astype(wide)
        found: np.ndarray = np.where(counter < steps // 2, upwards, downwards).astype(kind)
    return found


@lowering("prims.iota.default")
def iota(c: Context, length: int, *, start: int, step: int, **kwargs: object) -> Value:
    """`length` integers from `start` on, every `step`."""
    return _count(c, start, step)


@lowering("aten.eye.default", "aten.eye.m")
def eye(c: Context, n: int, m: int | None = None, **kwargs: object) -> Value:
    """Ones on the main diagonal of an n by m matrix."""
    shape = c.output.shape
    row, column = (c.b.iota(shape, d, INT64) for d in (0, 1))
    return c.result(c.b.compare(row, column, "EQ"))


@lowering("aten._to_copy.default", "prims.convert_element_type.default", "aten.to.dtype")
def convert(c: Context, x: Value, dtype: object = None, **kwargs: object) -> Value:
    """The values in another type; layout, pinning and memory format do not concern values.

    The device is ignored: placement decides where values are.
    """
    if kwargs.get("layout") not in (None, torch.strided):
        raise NotLowerable(f"conversion to layout {kwargs['layout']}")
    # An explicit conversion rounds, as in products that are split into halves.
    return c.unrounded(x, c.output.dtype).rounded


def _triangle(name: str, direction: str) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(c: Context, x: Value, diagonal: int = 0) -> Value:
        row, column = (c.b.iota(x.shape, d, INT64) for d in (x.rank - 2, x.rank - 1))
        shifted = c.b.add(row, c.full(x.shape, diagonal, INT64))
        kept = c.b.compare(column, shifted, "LE" if direction == "below" else "GE")
        return c.b.select(kept, x, c.full(x.shape, 0, x.dtype))


_triangle("tril", "below")
_triangle("triu", "above")


def _triangle_indices(name: str, direction: str) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(c: Context, row: int, col: int, offset: int = 0, **kwargs: object) -> Value:
        """(2, count): rows and columns of a triangle of a matrix, row-major."""
        b = c.b
        count = c.output.shape[1]
        if count == 0:
            return c.zeros(0)
        line = b.add(b.iota((row,), 0, INT64), c.full((row,), offset, INT64))
        zero, width = c.full((row,), 0, INT64), c.full((row,), col, INT64)
        if direction == "below":
            first = zero
            length = b.clamp(zero, b.add(line, c.full((row,), 1, INT64)), width)
        else:
            first = b.clamp(zero, line, width)
            length = b.subtract(width, first)
        rows = repeated(c, length, count)
        before = b.subtract(scan(c, length, 0, 0, b.add), length)
        shift = take(c, b.subtract(first, before), rows, 0)
        columns = b.add(b.iota((count,), 0, INT64), shift)
        return c.result(b.concatenate([c.reshape(v, (1, count)) for v in (rows, columns)], 0))


_triangle_indices("tril_indices", "below")
_triangle_indices("triu_indices", "above")
