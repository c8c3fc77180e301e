"""Graphs of pure functions of tensors, traced by AOTAutograd without Dynamo and torch.export."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_export_joint_simple

from pjrt_bridge.torch_interop.compat.autograd import decompositions, divided


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
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward graph of a function of tensors.

    Args:
        call: pure; its results share no memory with its arguments.
        arguments: fake tensors; those that require gradients get them.
        change: is given the joint graph before it is divided.

    Returns:
        A graph that gives the results, and behind them what is saved; one that takes what was saved
        and the gradients of the results that require them, and gives a gradient or None for each
        argument.
    """
    count = 0

    def counted(*tensors: Any) -> Sequence[Any]:
        nonlocal count
        found = call(*tensors)
        count = len(found)
        return found

    with _unfused():
        joint: Any = aot_export_joint_simple(
            counted, tuple(arguments), trace_joint=True, decompositions=decompositions()
        )
    change(joint)
    forward, backward = divided(joint, list(arguments), num_fwd_outputs=count)
    return _without_promises(forward), _without_promises(backward)


def _without_promises(module: fx.GraphModule) -> fx.GraphModule:
    """The graph without nodes that repeat what is known of a tensor's type."""
    for node in module.graph.find_nodes(
        op="call_function", target=torch.ops.aten._assert_tensor_metadata.default
    ):
        module.graph.erase_node(node)
    module.recompile()
    return module


@contextmanager
def _unfused() -> Iterator[None]:
    """Recurrent layers are traced as what they are made of; those of oneDNN lower in part alone."""
    with warnings.catch_warnings():
        # Torch speaks of settings of GPUs when these are read.
        warnings.simplefilter("ignore", UserWarning)
        with torch.backends.mkldnn.flags(enabled=False), _compiling():
            yield


@contextmanager
def _compiling() -> Iterator[None]:
    """Libraries that ask torch whether it compiles leave out what depends on data."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
