"""Attention with functions of the user (`flex_attention`), as operators of ATen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from pjrt_bridge.torch_interop.compat.aot.tracing import trace_beside_others
from pjrt_bridge.torch_interop.compat.promises.graphs import substitute
from pjrt_bridge.torch_interop.compat.promises.values import promise, without_autocast

_NAME = "flex_attention"


def take_device(kind: str, autocast_key: str) -> None:
    """Have the function take tensors of a device that torch does not list.

    Where gradients are computed, operators of ATen take the place of the higher-order operator
    before autograd sees them. PyTorch's operator of its gradients would leave out those of what the
    user's functions read, in graphs that are traced.

    Args:
        kind: the type of the device.
        autocast_key: the name of the dispatch key of its autocast.
    """
    from torch._higher_order_ops.flex_attention import flex_attention, sdpa_dense
    from torch.amp.autocast_mode import _cast
    from torch.nn.attention import flex_attention as module

    check = module._validate_device
    differentiate = flex_attention.py_kernels[DispatchKey.Autograd]

    def validate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != kind:
            check(query, key, value)

    def with_gradients(*args: Any, **kwargs: Any) -> Any:
        needs_gradients = torch.is_grad_enabled() and any(
            isinstance(item, torch.Tensor) and item.requires_grad
            for item in pytree.tree_leaves((args, kwargs))
        )
        of_device = args[0].device.type == kind
        return (sdpa_dense if of_device and needs_gradients else differentiate)(*args, **kwargs)

    def cast(*args: Any, **kwargs: Any) -> Any:
        given = (_cast(item, kind, torch.get_autocast_dtype(kind)) for item in args[:3])
        with without_autocast():
            return flex_attention(*given, *args[3:], **kwargs)

    module._validate_device = validate
    flex_attention.py_kernels[DispatchKey.Autograd] = with_gradients
    flex_attention.py_impl(getattr(DispatchKey, autocast_key))(cast)
    flex_attention._dispatch_cache.clear()


def flex_decompositions() -> dict[Any, Callable[..., Any]]:
    """The decomposition of the gradient of an array that the user's functions read elements of."""
    from torch._dynamo._trace_wrapped_higher_order_op import zeros_and_scatter

    return {zeros_and_scatter._opoverload: _scattered}


def _scattered(
    shape: Sequence[int], indices: Sequence[torch.Tensor], values: torch.Tensor
) -> torch.Tensor:
    return values.new_zeros(shape).index_put(tuple(indices), values, accumulate=True)


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
