"""Products with quantized operands: int8 times int8, float8 times float8, int8 and int4 weights.

ATen semantics kept: int8 is summed in int32; all others are summed in float32, multiplied with
their scales there, and rounded once.
"""

from __future__ import annotations

from typing import Any

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import FLOAT32, INT32, Context
from pjrt_bridge.torch_interop.lowering.linalg.matmul import product
from pjrt_bridge.torch_interop.lowering.quantization import packing
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering


@lowering("aten._int_mm.default")
def integer_product(c: Context, x: Value, y: Value) -> Value:
    """(m, k) times (k, n), of int8 (or uint8 on the left), as int32."""
    if x.shape[1] == 0:
        return c.full(c.output.shape, 0, INT32)
    if x.dtype != y.dtype:
        x, y = c.b.convert(x, INT32), c.b.convert(y, INT32)
    return c.b.dot_general(x, y, lhs_contract=(1,), rhs_contract=(0,), out_dtype=INT32)


@lowering("aten._scaled_mm.default")
def scaled_product(
    c: Context,
    x: Value,
    y: Value,
    scale_a: Value,
    scale_b: Value,
    bias: Value | None = None,
    scale_result: Value | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Value:
    """(m, k) times (k, n) of float8; one scale for all, or one a row of `x` and a column of `y`."""
    rows, columns = c.output.shape
    total = _scaled(c, x, y, _scale(c, scale_a, (rows, 1)), _scale(c, scale_b, (1, columns)))
    if bias is not None:
        total = c.b.add(total, c.broadcast(c.cast(bias, FLOAT32), total.shape))
    if scale_result is not None and c.output.dtype.bits == 8:
        if scale_result.size != 1:
            raise NotLowerable(f"its result has {scale_result.size} scales, not one")
        one = c.b.divide(c.full((), 1, FLOAT32), c.reshape(c.cast(scale_result, FLOAT32), ()))
        total = c.b.multiply(total, c.broadcast(one, total.shape))
    if c.output.dtype.name == "float8_e4m3fn":
        # This type has no infinity; ATen gives its largest number.
        low, high = (c.full(total.shape, limit, FLOAT32) for limit in (-448.0, 448.0))
        total = c.b.clamp(low, total, high)
    return c.result(total)


def _scale(c: Context, scale: Value, shape: tuple[int, int]) -> Value:
    """A scale of all elements, or one of each row or column."""
    if scale.size == 1:
        return c.reshape(c.cast(scale, FLOAT32), (1, 1))
    if scale.shape != shape or scale.dtype != FLOAT32:
        raise NotLowerable(f"scales of shape {scale.shape} are neither one nor of shape {shape}")
    return scale


def _scaled(c: Context, x: Value, y: Value, scale_x: Value, scale_y: Value) -> Value:
    wide = (c.b.convert(x, FLOAT32), c.b.convert(y, FLOAT32))
    total = product(c, *wide, FLOAT32)
    scales = c.b.multiply(c.broadcast(scale_x, total.shape), c.broadcast(scale_y, total.shape))
    return c.b.multiply(total, scales)


@lowering("aten._weight_int8pack_mm.default")
def int8_weight_product(c: Context, x: Value, weight: Value, scales: Value) -> Value:
    """(m, k) times the transposed (n, k) of int8, with one scale a column."""
    # Half precision holds all of int8.
    transposed = c.b.transpose(c.b.convert(weight, x.dtype), (1, 0))
    total = product(c, x, transposed, FLOAT32)
    spread = c.along(c.cast(scales, FLOAT32), total.shape, 1)
    return c.result(c.b.multiply(total, spread))


@lowering("aten._weight_int4pack_mm_for_cpu.default")
def int4_weight_product(
    c: Context, x: Value, packed: Value, group: int, scales_and_zeros: Value
) -> Value:
    """(m, k) times the transposed (n, k) of 4-bit numbers.

    Each group of `group` elements along k has a scale and a zero point in each row, (k / group, n,
    2); a number stands for `(number - 8) * scale + zero`.
    """
    rows, half = packed.shape
    weight = packing.unpack(c, packed)
    inner, count = half * 2, scales_and_zeros.shape[0]
    centered = c.b.subtract(c.b.convert(weight, FLOAT32), c.full(weight.shape, 8, FLOAT32))
    groups = c.reshape(centered, (rows, count, inner // count))
    wide = c.cast(scales_and_zeros, FLOAT32)
    scales, zeros = (
        c.b.broadcast_in_dim(
            c.reshape(c.b.slice(wide, (0, 0, at), (count, rows, at + 1), (1, 1, 1)), (count, rows)),
            groups.shape,
            (1, 0),
        )
        for at in (0, 1)
    )
    values = c.reshape(c.b.add(c.b.multiply(groups, scales), zeros), (rows, inner))
    total = product(c, c.cast(x, FLOAT32), c.b.transpose(values, (1, 0)), FLOAT32)
    return c.result(total)


@lowering("aten._convert_weight_to_int4pack_for_cpu.default")
def pack_int4(c: Context, weight: Value, inner_k_tiles: int) -> Value:
    """(n, k) of int32 with 4 bits as (n, k / 2) bytes, in ATen's order."""
    return packing.pack(c, weight)
