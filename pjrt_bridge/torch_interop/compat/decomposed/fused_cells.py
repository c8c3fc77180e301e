"""Decompositions of recurrent cells that are one operator on accelerators.

LSTM: Hochreiter and Schmidhuber, "Long short-term memory" (1997), with gates in the order input,
forget, cell, output. GRU: Cho et al., "Learning phrase representations" (2014), with gates in the
order reset, update, new. What forward keeps for backward lies as ATen's kernels have it; half
precision is computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.operators import by_operator


def fused_cell_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each cell, and its backward, its decomposition."""
    return by_operator({f"aten.{name}.default": rule for name, rule in _RULES.items()})


def _wide(tensor: Tensor) -> Tensor:
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.float() if half else tensor


def _with_bias(gates: Tensor, bias: Tensor | None) -> Tensor:
    return _wide(gates) if bias is None else _wide(gates) + _wide(bias)


def _lstm(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden state, cell state (batch, size), and the gates (batch, 4 size)."""
    total = _with_bias(input_gates, input_bias) + _with_bias(hidden_gates, hidden_bias)
    i, f, g, o = total.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * _wide(cx) + i * g
    hy = o * cy.tanh()
    dtype = cx.dtype
    return hy.to(dtype), cy.to(dtype), torch.cat([i, f, g, o], 1).to(dtype)


def _lstm_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the gates (batch, 4 size), the cell state and the bias (4 size)."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = _wide(workspace).chunk(4, 1)
    past, reached = _wide(cx), _wide(cy).tanh()
    of_hidden = torch.zeros_like(past) if grad_hy is None else _wide(grad_hy)
    of_cell = of_hidden * o * (1 - reached * reached)
    if grad_cy is not None:
        of_cell = of_cell + _wide(grad_cy)
    parts = [
        of_cell * g * (1 - i) * i,
        of_cell * past * (1 - f) * f,
        of_cell * i * (1 - g * g),
        of_hidden * reached * (1 - o) * o,
    ]
    of_gates = torch.cat(parts, 1)
    of_bias = of_gates.sum(0).to(cx.dtype) if has_bias else None
    return of_gates.to(cx.dtype), (of_cell * f).to(cx.dtype), of_bias


def _gru(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Hidden state (batch, size); gates, old state, what the reset gate scales (batch, 5 size)."""
    ir, iz, n = _with_bias(input_gates, input_bias).chunk(3, 1)
    hr, hz, scaled = _with_bias(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n, past = (n + r * scaled).tanh(), _wide(hx)
    kept = torch.cat([r, z, n, past, scaled], 1)
    return (n + z * (past - n)).to(hx.dtype), kept.to(hx.dtype)


def _gru_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of both gates (batch, 3 size), of the state (batch, size) and of both biases."""
    dtype = grad_hy.dtype
    r, z, n, past, scaled = _wide(workspace).chunk(5, 1)
    given = _wide(grad_hy)
    of_update = given * (past - n) * (1 - z) * z
    of_new = given * (1 - z) * (1 - n * n)
    of_reset = of_new * scaled * (1 - r) * r
    of_input = torch.cat([of_reset, of_update, of_new], 1)
    of_hidden = torch.cat([of_reset, of_update, of_new * r], 1)
    biases = [one.sum(0).to(dtype) if has_bias else None for one in (of_input, of_hidden)]
    return of_input.to(dtype), of_hidden.to(dtype), (given * z).to(dtype), biases[0], biases[1]


_RULES: dict[str, Callable[..., Any]] = {
    "_thnn_fused_lstm_cell": _lstm,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_backward,
    "_thnn_fused_gru_cell": _gru,
    "_thnn_fused_gru_cell_backward": _gru_backward,
}
