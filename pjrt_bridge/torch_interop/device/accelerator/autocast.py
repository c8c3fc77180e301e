"""`torch.autocast("pjrt")`: which operators compute in half precision, and which in float32.

The lists are those of torch for CUDA (torch/csrc, autocast_mode.h), because accelerators gain and
lose by the same operators.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.compat.devices import higher_order, third_party_device
from pjrt_bridge.torch_interop.compat.operators import operator
from pjrt_bridge.torch_interop.named_device.naming import NAME


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_LOWER = _names("""
addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc
conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution linear linalg_multi_dot
linalg_vecdot matmul mm mv prelu scaled_dot_product_attention _thnn_fused_gru_cell
_thnn_fused_lstm_cell gru_cell lstm_cell rnn_relu_cell rnn_tanh_cell
""")
_FLOAT32 = _names("""
acos asin binary_cross_entropy cdist ceil cosh cosine_embedding_loss cosine_similarity cumprod
cumsum dist erfinv exp expm1 fft_fft fft_fft2 fft_fftn fft_ifft fft_irfft fft_rfft
frobenius_norm.dim group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm log log10
log1p log2 log_softmax.int logsumexp margin_ranking_loss mse_loss multi_margin_loss
multilabel_margin_loss native_layer_norm nll_loss nll_loss2d norm.Scalar norm.ScalarOpt_dim
norm.ScalarOpt_dim_dtype norm.names_ScalarOpt_dim nuclear_norm pdist poisson_nll_loss pow.Scalar
pow.Tensor_Scalar pow.Tensor_Tensor prod prod.dim_int reciprocal renorm rsqrt sinh smooth_l1_loss
soft_margin_loss softmax.int softplus sum sum.dim_IntList tan triplet_margin_loss
""")
_WIDEST = _names("""
addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot cat stack
""")

_CastingKernel = Callable[..., Any]


def register(kernels: third_party_device.OperatorKernels) -> None:
    """Register the kernels of autocast; operators on no list compute as they are given."""
    key = f"Autocast{third_party_device.KEY}"
    kernels.of_others(third_party_device.FALL_THROUGH, key)
    higher_order.ignore_autocast(key)
    for names, kernel in ((_LOWER, _lower), (_FLOAT32, _float32), (_WIDEST, _widest)):
        for name in names:
            op = operator(f"aten.{name}" if "." in name else f"aten.{name}.default")
            if op is not None:
                kernels.of(f"aten.{name}", partial(kernel, op), key)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        usual = value.is_floating_point() and value.dtype is not torch.float64
        return value.to(dtype) if usual and value.device.type == NAME else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(item, dtype) for item in value)
    return value


def _run(op: Any, dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
    with compat.without_autocast():
        return op(
            *(_cast(item, dtype) for item in args),
            **{name: _cast(item, dtype) for name, item in kwargs.items()},
        )


def _lower(op: Any, *args: Any, **kwargs: Any) -> Any:
    return _run(op, torch.get_autocast_dtype(NAME), args, kwargs)


def _float32(op: Any, *args: Any, **kwargs: Any) -> Any:
    return _run(op, torch.float32, args, kwargs)


def _widest(op: Any, *args: Any, **kwargs: Any) -> Any:
    found = {item.dtype for item in _tensors((args, tuple(kwargs.values())))}
    if torch.float32 in found:
        return _run(op, torch.float32, args, kwargs)
    with compat.without_autocast():
        return op(*args, **kwargs)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []
