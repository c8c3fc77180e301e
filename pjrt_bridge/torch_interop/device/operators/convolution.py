"""Convolutions, for which torch calls operators of their own on devices that it does not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pjrt_bridge.torch_interop.device.operators.operators import call


def forward(input: torch.Tensor, weight: torch.Tensor, *args: Any) -> Any:
    """`aten.convolution_overrideable`."""
    return call(torch.ops.aten.convolution.default, input, weight, *args)


def backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """`aten.convolution_backward_overrideable`."""
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    return call(
        torch.ops.aten.convolution_backward.default,
        grad_output,
        input,
        weight,
        [channels],
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        output_mask,
    )
