"""Graphs of pure functions of tensors, traced by AOTAutograd without Dynamo and torch.export."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.overrides import TorchFunctionMode

from pjrt_bridge.torch_interop.compat.aot.autograd import decompositions, divided


def export_plain(call: Callable[..., Sequence[Any]], arguments: Sequence[Any]) -> fx.GraphModule:
    """The functional graph of a function of tensors; see `export_divided`."""
    with _unfused():
        found: Any = aot_export_joint_simple(
            call, tuple(arguments), trace_joint=False, decompositions=decompositions()
        )
    return _without_promises(found)


def export_divided(
    call: Callable[..., Sequence[Any]],
    arguments: Sequence[Any],
    change: Callable[[fx.GraphModule], None] = lambda _: None,
) -> tuple[fx.GraphModule, fx.GraphModule, tuple[bool, ...]]:
    """The forward and the backward graph of a function of tensors.

    Args:
        call: pure; its results share no memory with its arguments.
        arguments: fake tensors; those that require gradients get them.
        change: is given the joint graph before it is divided.

    Returns:
        A graph that gives the results, and behind them what is saved; one that takes what was saved
        and the gradients of the results that require them, and gives a gradient or None for each
        argument; for each result whether it requires gradients.
    """
    required: list[tuple[bool, ...]] = []

    def observed(*tensors: Any) -> Sequence[Any]:
        found = call(*tensors)
        required.append(tuple(item.requires_grad for item in found))
        return found

    with _unfused():
        joint: Any = aot_export_joint_simple(
            observed, tuple(arguments), trace_joint=True, decompositions=decompositions()
        )
    change(joint)
    forward, backward = divided(joint, list(arguments), num_fwd_outputs=len(required[0]))
    reads = tuple(map(any, zip(*required, strict=True)))
    return _without_promises(forward), _without_promises(backward), reads


def _without_promises(module: fx.GraphModule) -> fx.GraphModule:
    """The graph without what holds for certain strides of its arguments alone."""
    aten = torch.ops.aten
    for node in module.graph.find_nodes(
        op="call_function", target=aten._assert_tensor_metadata.default
    ):
        module.graph.erase_node(node)
    # A view may be none for what callers give: that is row-major, whatever the graph has promised.
    for node in module.graph.find_nodes(op="call_function", target=aten.view.default):
        node.target = aten.reshape.default
    module.recompile()
    return module


@contextmanager
def _unfused() -> Iterator[None]:
    """Recurrent layers are traced as what they are made of; those of oneDNN lower in part alone."""
    with warnings.catch_warnings():
        # Torch speaks of settings of GPUs when these are read.
        warnings.simplefilter("ignore", UserWarning)
        with torch.backends.mkldnn.flags(enabled=False), _compiling(), _PlainFlags():
            yield


class _PlainFlags(TorchFunctionMode):
    """Leaves out what modules say of tensors that are computed: whether these require gradients.

    Modules say so of their own inputs, which are no parameters; here they are results already.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _SET_REQUIRES_GRAD and not args[0].is_leaf:
            return None
        return func(*args, **(kwargs or {}))


_SET_REQUIRES_GRAD = torch.Tensor.requires_grad.__set__  # type: ignore[attr-defined]


@contextmanager
def _compiling() -> Iterator[None]:
    """Libraries that ask torch whether it compiles leave out what depends on data."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
