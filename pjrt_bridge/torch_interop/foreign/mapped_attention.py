"""Attention in graphs that are mapped: rows of the mapped dimension become rows of the batch.

PyTorch has no rule of `torch.vmap` for its attention on the CPU, and calls it row after row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.tensors import with_rows

_NAMES = (
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
)


def has_attention(module: fx.GraphModule) -> bool:
    """Whether a graph calls attention."""
    return any(compat.operator_name(node.target) in _NAMES for node in module.graph.nodes)


def with_mapped_attention(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph, to be mapped: its attention has a rule. It has no gradients."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        if compat.operator_name(node.target) in _NAMES:
            node.args, node.target = (node.target, *node.args), _called
    return fx.GraphModule(module, graph)


def _called(operator: Any, *args: Any, attn_mask: Any = None, scale: float | None = None) -> Any:
    return _apply(operator, attn_mask, scale, *args)


class _MappedAttention(torch.autograd.Function):
    """Attention, or its gradients, with a rule of `torch.vmap`."""

    @staticmethod
    def forward(operator: Any, attn_mask: Any, scale: float | None, *args: Any) -> Any:
        """The results of the operator."""
        return tuple(operator(*args, attn_mask=attn_mask, scale=scale))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, operator: Any, attn_mask: Any, scale: float | None, *args: Any
    ) -> Any:
        """The results for all rows, of one call."""
        count = info.batch_size
        given = [
            with_rows(item, dim, count).flatten(0, 1) if isinstance(item, torch.Tensor) else item
            for item, dim in zip(args, in_dims[3:], strict=True)
        ]
        if attn_mask is not None:
            attn_mask = _mask(attn_mask, in_dims[1], count, given[0].shape[0] // count)
        found = _apply(operator, attn_mask, scale, *given)
        rows = tuple(item.reshape(count, -1, *item.shape[1:]) for item in found)
        return rows, (0,) * len(rows)


_apply: Callable[..., tuple[torch.Tensor, ...]] = _MappedAttention.apply


def _mask(mask: torch.Tensor, dim: int | None, count: int, batch: int) -> torch.Tensor:
    """A mask for the batch of all rows; what it lacks of four dimensions has one row."""
    rows = with_rows(mask, dim, count)
    rows = rows.reshape(count, *(1,) * (5 - rows.dim()), *rows.shape[1:])
    return rows.expand(-1, batch, -1, -1, -1).flatten(0, 1)
