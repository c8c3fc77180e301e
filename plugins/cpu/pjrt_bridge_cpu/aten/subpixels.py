"""Transposed convolutions as plain ones, whose channels are the places between two data points.

A transposed convolution with a stride puts so many places in the place of each data point. Where
the stride divides the kernel, each of these places is a sum over the same neighbors, with weights
of its own: a plain convolution computes them all, as channels, and they are put side by side (Shi
and others, "Is the deconvolution layer the same as a convolutional layer?", 2016). XLA's CPU
compiler goes through the zeros between the data points, and oneDNN's transposed convolutions are
slower than that where data has channels last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pjrt_bridge.stablehlo import Builder, TensorType, Value


class PlainConvolution(NamedTuple):
    """What computes all places.

    Attributes:
        weight: (places * out, in, *kernel / stride).
        bias: one number for each of these channels.
        padding: before and behind each spatial dimension.
        result: (batch, places * out, *spatial) of its result.
    """

    weight: Value
    bias: Value | None
    padding: list[int]
    result: TensorType


def fits(
    weight: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> bool:
    """Whether the places are sums over the same neighbors, and the plain ones give all results."""
    return (
        groups == 1
        and set(dilation) == {1}
        and math.prod(stride) > 1
        and not any(k % s for k, s in zip(weight.shape[2:], stride, strict=True))
        and all(more <= p for more, p in zip(output_padding, padding, strict=True))
    )


def plain(
    b: Builder, x: Value, weight: Value, bias: Value | None, stride: Sequence[int]
) -> PlainConvolution:
    """The plain convolution for a weight (in, out, *kernel) of a transposed one."""
    inner, outer, *kernel = weight.shape
    count, places = len(stride), math.prod(stride)
    taps = [k // s for k, s in zip(kernel, stride, strict=True)]
    split = b.reshape(
        weight, (inner, outer, *(n for pair in zip(taps, stride, strict=True) for n in pair))
    )
    # (*stride, out, in, *taps): data comes in the order of the taps turned round.
    first = range(2, 2 + 2 * count, 2)
    moved = b.transpose(split, (*(dim + 1 for dim in first), 1, 0, *first))
    packed = b.reshape(moved, (places * outer, inner, *taps))
    size = [n + k - 1 for n, k in zip(x.shape[2:], taps, strict=True)]
    if bias is not None:
        bias = b.reshape(b.broadcast_in_dim(bias, (places, outer), (1,)), (places * outer,))
    return PlainConvolution(
        b.reverse(packed, tuple(range(2, 2 + count))),
        bias,
        [k - 1 for k in taps],
        TensorType((x.shape[0], places * outer, *size), x.dtype),
    )


def side_by_side(
    b: Builder, y: Value, result: TensorType, stride: Sequence[int], padding: Sequence[int]
) -> Value:
    """The result of the transposed convolution, of that of the plain one."""
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
