"""Attention with functions of the user (`flex_attention`), as operators of ATen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from pjrt_bridge.torch_interop.compat.graphs import substitute
from pjrt_bridge.torch_interop.compat.tracing import trace_beside_others
from pjrt_bridge.torch_interop.compat.values import promise

_NAME = "flex_attention"


def take_device(kind: str) -> None:
    """Have the function take tensors of a device that torch does not list.

    In compiled graphs without gradients, as torch has it for the host: PyTorch's operator of
    gradients leaves out those of what the functions read.

    Args:
        kind: the type of the device.
    """
    from torch.nn.attention import flex_attention as module

    check = module._validate_device

    def validate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != kind:
            check(query, key, value)
        elif torch.compiler.is_compiling() and any(
            item.requires_grad for item in (query, key, value)
        ):
            raise NotImplementedError(
                f"flex_attention in a compiled graph on device {kind!r} has no gradients: call it "
                "where torch.compile does not trace (torch.compiler.disable)"
            )

    module._validate_device = validate


def is_flex_attention(node: fx.Node) -> bool:
    """Whether a node calls the higher-order operator."""
    return isinstance(node.target, HigherOrderOperator) and str(node.target) == _NAME


def flex_attention_operators(
    node: fx.Node, table: Mapping[Any, Callable[..., Any]]
) -> tuple[fx.Graph, list[fx.Node]]:
    """What eager computes for a call, as a graph; its functions are applied to all scores at once.

    Args:
        node: of a graph with known sizes.
        table: the decompositions that the graph goes through.

    Returns:
        The graph, and the nodes that are its arguments.
    """
    from torch._higher_order_ops.flex_attention import math_attention

    given = [item for item in node.all_input_nodes if isinstance(promise(item), torch.Tensor)]
    fakes = [promise(item) for item in given]
    modes = (item.fake_mode for item in fakes if isinstance(item, FakeTensor))
    others = {item: promise(item) for item in node.all_input_nodes if item not in given}

    def function(*tensors: torch.Tensor) -> Any:
        values = {**others, **dict(zip(given, tensors, strict=True))}
        args, kwargs = substitute((node.args, node.kwargs), values)
        return pytree.tree_leaves(math_attention(*args, **kwargs))

    with next(modes, None) or FakeTensorMode(), torch.no_grad():
        traced = trace_beside_others(function, fakes, table)
    return traced.graph, given
