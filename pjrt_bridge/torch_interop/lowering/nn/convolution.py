"""Convolution in one to three spatial dimensions, transposed or not, and its derivatives.

ATen semantics kept: tensors are (batch, channels, *spatial), weights (out, in / groups, *kernel),
or (in, out / groups, *kernel) for a transposed convolution; a window parameter of length one
stands for every dimension; half precision is accumulated in float32, the bias added, and the sum
rounded once. All three directions are one StableHLO convolution whose padding after the data is
whatever the promised size needs, so `output_padding` is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.kernel_attributes import Convolution
from pjrt_bridge.torch_interop.lowering.context import Context, compute_type, per_axis
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering

_SPATIAL = "DHW"


@dataclass(frozen=True)
class _Window:
    """Per spatial dimension: stride, padding before the data, dilation; and the groups."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


def _window(
    x: Value, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> _Window:
    count = x.rank - 2
    if not 1 <= count <= len(_SPATIAL):
        raise NotLowerable(f"convolution over {count} spatial dimensions")
    return _Window(
        per_axis(stride, count), per_axis(padding, count), per_axis(dilation, count), groups
    )


@lowering("aten.convolution.default", "aten._convolution.default")
def convolution(
    c: Context,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *backend_flags: bool,
) -> Value:
    """Cross-correlation with the weight, or its adjoint when `transposed`."""
    window = _window(x, stride, padding, dilation, groups)
    out = c.output
    through = _adjoint if transposed else _correlate
    dtype = out.dtype if bias is None else compute_type(x.dtype)
    y = through(c, x, weight, window, out.shape[2:], dtype)
    if bias is not None:
        y = c.b.add(y, c.along(c.cast(bias, y.dtype), y.shape, 1))
    return c.result(y)


@lowering("aten.convolution_backward.default")
def convolution_backward(
    c: Context,
    grad: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    """Gradients of input, weight and bias."""
    window = _window(x, stride, padding, dilation, groups)
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        through = _correlate if transposed else _adjoint
        grad_x = through(c, grad, weight, window, x.shape[2:], x.dtype)
    if output_mask[1]:
        # For the adjoint, gradient and input are exchanged; the weight keeps its layout.
        sides = (grad, x) if transposed else (x, grad)
        grad_weight = _weight_gradient(c, *sides, window, weight.shape[2:])
    if output_mask[2]:
        grad_bias = c.reduce("sum", c.widen(grad), (0, *range(2, grad.rank)))
    return c.promised(grad_x, grad_weight, grad_bias)


def _numbers(rank: int, lhs: str, rhs: str, out: str) -> tuple[str, str, str]:
    spatial = _SPATIAL[-(rank - 2) :]
    return lhs + spatial, rhs + spatial, out + spatial


def _padding(
    window: _Window, size: Sequence[int], kernel: Sequence[int], data: Sequence[int]
) -> list[tuple[int, int]]:
    """Padding before and behind spatial data over which a kernel takes `size` places."""
    return [
        (low, (n - 1) * s + (k - 1) * d + 1 - low - length)
        for n, s, d, low, k, length in zip(
            size, window.stride, window.dilation, window.padding, kernel, data, strict=True
        )
    ]


def _correlate(
    c: Context, x: Value, weight: Value, window: _Window, size: Sequence[int], dtype: DType
) -> Value:
    """(N, I, ...) with a weight (O, I / groups, ...) to (N, O, *size)."""
    padding = _padding(window, size, weight.shape[2:], x.shape[2:])
    return c.kernels.convolution(
        c.b,
        x,
        weight,
        Convolution(
            window_strides=window.stride,
            padding=padding,
            lhs_dilation=[1] * len(padding),
            rhs_dilation=window.dilation,
            feature_group_count=window.groups,
            dimension_numbers=_numbers(x.rank, "NC", "OI", "NC"),
        ),
        accumulator=compute_type(x.dtype),
        dtype=dtype,
    )


def _adjoint(
    c: Context, y: Value, weight: Value, window: _Window, size: Sequence[int], dtype: DType
) -> Value:
    """(N, O, ...) with the weight (O, I / groups, ...) of `_correlate` back to (N, I, *size)."""
    padding = []
    for n, s, d, p, k, length in zip(
        size,
        window.stride,
        window.dilation,
        window.padding,
        weight.shape[2:],
        y.shape[2:],
        strict=True,
    ):
        reach = (k - 1) * d
        padding.append((reach - p, n + p - (length - 1) * s - 1))
    spatial = tuple(range(2, weight.rank))
    return c.kernels.convolution(
        c.b,
        y,
        c.b.reverse(_swap_groups(c, weight, window.groups), spatial),
        Convolution(
            window_strides=[1] * len(padding),
            padding=padding,
            lhs_dilation=window.stride,
            rhs_dilation=window.dilation,
            feature_group_count=window.groups,
            dimension_numbers=_numbers(y.rank, "NC", "IO", "NC"),
        ),
        accumulator=compute_type(y.dtype),
        dtype=dtype,
    )


def _swap_groups(c: Context, weight: Value, groups: int) -> Value:
    """(O, I / groups, ...) to (O / groups, I, ...): each group's block keeps its channels."""
    if groups == 1:
        return weight
    out, inner, *kernel = weight.shape
    split = c.reshape(weight, (groups, out // groups, inner, *kernel))
    moved = c.b.transpose(split, (1, 0, *range(2, split.rank)))
    return c.reshape(moved, (out // groups, groups * inner, *kernel))


def _weight_gradient(
    c: Context, x: Value, grad: Value, window: _Window, kernel: Sequence[int]
) -> Value:
    """The gradient of the weight (O, I / groups, *kernel) of `_correlate`.

    A correlation that contracts the batch, with stride and dilation in exchanged roles.
    """
    padding = _padding(window, grad.shape[2:], kernel, x.shape[2:])
    swapped = c.kernels.convolution(
        c.b,
        x,
        grad,
        Convolution(
            window_strides=window.dilation,
            padding=padding,
            lhs_dilation=[1] * len(padding),
            rhs_dilation=window.stride,
            batch_group_count=window.groups,
            dimension_numbers=_numbers(x.rank, "CN", "IO", "NC"),
        ),
        accumulator=compute_type(x.dtype),
        dtype=compute_type(x.dtype),
    )
    return c.b.transpose(swapped, (1, 0, *range(2, swapped.rank)))
