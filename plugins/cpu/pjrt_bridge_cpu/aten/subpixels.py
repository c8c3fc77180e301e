"""Transposed convolutions as plain ones, with more channels where they have a stride.

Without a stride it is the plain one of the flipped kernel, with other padding.

A transposed convolution with a stride of s gives s results for each element of its data, along each
dimension. Where s divides the size of the kernel, each of them is a sum over the same elements,
with weights of its own. One plain convolution computes them all, as channels of its result, and a
transposition interleaves them (Shi and others, "Is the deconvolution layer the same as a
convolutional layer?", 2016). XLA's CPU compiler multiplies the zeros that it puts between the
elements of the data, and oneDNN's transposed convolutions are slower than that where data has
channels last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pjrt_bridge.stablehlo import Builder, TensorType, Value


def is_flipped(
    weight: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    places: Sequence[int],
) -> bool:
    """Whether a transposed convolution is the plain one of the flipped kernel; see `fits`.

    Nor is it one where most of what that multiplied would be padding. It multiplies padding by an
    infinite weight, too, as plain convolutions of PyTorch do: NaN, where a transposed one has none.

    Args:
        weight: see `fits`, as what follows.
        stride: see there.
        padding: see there.
        dilation: see there.
        output_padding: see there.
        places: the data's spatial dimensions.
    """
    around = flipped_padding(weight, padding, dilation)
    return (
        set(stride) == {1}
        and not any(output_padding)
        and all(0 <= more <= place // 4 for more, place in zip(around, places, strict=True))
    )


def flipped_padding(weight: Value, padding: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """The padding of the plain convolution."""
    sizes = zip(weight.shape[2:], padding, dilation, strict=True)
    return [step * (size - 1) - cut for size, cut, step in sizes]


def flipped(b: Builder, weight: Value, groups: int) -> Value:
    """The weight of the plain convolution, (out, in / groups, *kernel).

    Args:
        b: the builder to emit into.
        weight: (in, out / groups, *kernel) of the transposed one.
        groups: of channels.
    """
    given, made, *kernel = weight.shape
    split = b.reshape(weight, (groups, given // groups, made, *kernel))
    turned = b.transpose(split, (0, 2, 1, *range(3, split.rank)))
    plain_weight = b.reshape(turned, (groups * made, given // groups, *kernel))
    return b.reverse(plain_weight, range(2, weight.rank))


def fits(
    weight: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> bool:
    """Whether a plain convolution computes all results of a transposed one, and no sums of zeros.

    Args:
        weight: (in, out, *kernel).
        stride: of each spatial dimension, as all that follow but the last.
        padding: what is cut off at both ends.
        dilation: of the kernel.
        output_padding: how many more results there are behind the others.
        groups: of channels.
    """
    return (
        groups == 1
        and set(dilation) == {1}
        and math.prod(stride) > 1
        and not any(k % s for k, s in zip(weight.shape[2:], stride, strict=True))
        and all(more <= p for more, p in zip(output_padding, padding, strict=True))
    )


def plain(
    b: Builder, x: Value, weight: Value, bias: Value | None, stride: Sequence[int]
) -> tuple[dict[str, Any], TensorType]:
    """The arguments of oneDNN's operator for a plain convolution, and the type of its result.

    Args:
        b: the builder to emit into.
        x: (batch, in, *spatial).
        weight: (in, out, *kernel) of the transposed convolution.
        bias: (out,), or none.
        stride: of the transposed convolution.

    Returns:
        Arguments with a weight (stride * out, in, *kernel / stride), where `stride` is the product
        of all, and the type (batch, stride * out, *spatial + kernel / stride - 1).
    """
    inner, outer, *kernel = weight.shape
    count, places = len(stride), math.prod(stride)
    taps = [k // s for k, s in zip(kernel, stride, strict=True)]
    split = b.reshape(
        weight, (inner, outer, *(n for pair in zip(taps, stride, strict=True) for n in pair))
    )
    # (*stride, out, in, *taps). A transposed convolution goes through the taps in the other order.
    first = range(2, 2 + 2 * count, 2)
    moved = b.transpose(split, (*(dim + 1 for dim in first), 1, 0, *first))
    packed = b.reshape(moved, (places * outer, inner, *taps))
    size = [n + k - 1 for n, k in zip(x.shape[2:], taps, strict=True)]
    if bias is not None:
        bias = b.reshape(b.broadcast_in_dim(bias, (places, outer), (1,)), (places * outer,))
    arguments = {
        "self": x,
        "weight": b.reverse(packed, tuple(range(2, 2 + count))),
        "bias": bias,
        "stride": [1] * count,
        "padding": [k - 1 for k in taps],
        "dilation": [1] * count,
        "groups": 1,
    }
    return arguments, TensorType((x.shape[0], places * outer, *size), x.dtype)


def interleaved(
    b: Builder, y: Value, result: TensorType, stride: Sequence[int], padding: Sequence[int]
) -> Value:
    """The result of the transposed convolution, whose elements are channels of the plain one."""
    count, (batch, channels) = len(stride), result.shape[:2]
    size = y.shape[2:]
    split = b.reshape(y, (batch, *stride, channels, *size))
    order = [0, 1 + count]
    for dim in range(count):
        order += [2 + count + dim, 1 + dim]
    wide = [n * s for n, s in zip(size, stride, strict=True)]
    joined = b.reshape(b.transpose(split, order), (batch, channels, *wide))
    ends = [p + n for p, n in zip(padding, result.shape[2:], strict=True)]
    return b.slice(joined, (0, 0, *padding), (batch, channels, *ends))
