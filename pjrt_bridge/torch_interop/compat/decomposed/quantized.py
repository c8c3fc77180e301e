"""Decompositions of the operators that torch's quantizers put into graphs.

`quantized_decomposed` is the namespace of PyTorch 2 Export quantization. Its operators have
kernels in Python, which are traced where they read no numbers out of tensors; those that do are
written anew. They exist once `torch.ao.quantization` or a package that uses it registers them.

Source: torch/ao/quantization/fx/_decomposed.py, whose numbers these are to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.operators import operator

_NAMESPACE = "quantized_decomposed"
_TRACED = (
    "quantize_per_tensor.default",
    "dequantize_per_tensor.default",
    "quantize_per_channel.default",
    "dequantize_per_channel.default",
    "quantize_per_token.default",
    "dequantize_per_token.default",
    "dequantize_per_channel_group.default",
    "choose_qparams_per_token.default",
    "choose_qparams_per_token_asymmetric.default",
    "convert_element_type.no_fuse",
)


def quantized_decompositions() -> dict[Any, Callable[..., Any]]:
    """The decompositions of those operators that are registered by now."""
    rules: dict[str, Callable[..., Any]] = {
        "quantize_per_tensor.tensor": _quantize,
        "quantize_per_tensor.tensor2": _quantize,
        "dequantize_per_tensor.tensor": _dequantize,
        "dequantize_per_tensor.tensor2": _dequantize,
    }
    found: dict[Any, Callable[..., Any]] = {}
    for name in (*_TRACED, *rules):
        op = operator(f"{_NAMESPACE}.{name}")
        if op is not None:
            found[op] = rules.get(name) or partial(_own_kernel, op)
    return found


def _own_kernel(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return op._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)


def _quantize(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    quant_min: int | torch.Tensor,
    quant_max: int | torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    # The kernel divides a Python number, which has 64 bits.
    inverse = 1.0 / scale.reshape(()).double()
    whole = torch.round(x.float() * inverse) + zero_point.reshape(())
    low, high = (
        bound.reshape(())
        if isinstance(bound, torch.Tensor)
        else torch.full((), bound, device="cpu")
        for bound in (quant_min, quant_max)
    )
    return torch.minimum(torch.maximum(whole, low), high).to(dtype)


def _dequantize(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    quant_min: int | torch.Tensor,
    quant_max: int | torch.Tensor,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    number = x.to(torch.float32 if out_dtype is None else out_dtype)
    return (number - zero_point.reshape(())) * scale.reshape(())
