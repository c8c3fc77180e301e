"""Guards of Dynamo on where in their storages the arguments of a graph lie.

Dynamo compiles again where the sizes or strides of an argument change, but not where its offset
does. `as_strided` addresses the storage, and a device is given what begins at the argument.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import TensorProperty, TensorPropertySource
from torch._guards import TracingContext

_NAMES = frozenset(("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter"))


def guard_offsets(graph: fx.GraphModule) -> None:
    """Have a graph that addresses storages compiled again where an argument has another offset.

    Args:
        graph: from Dynamo, while it is compiled.
    """
    context = TracingContext.try_get()
    if context is None or not _addresses_storages(graph):
        return
    for node in graph.graph.find_nodes(op="placeholder"):
        argument = node.meta.get("grapharg")
        example = node.meta.get("example_value")
        if argument is None or not isinstance(example, torch.Tensor):
            continue
        # Dynamo passes floats that change as tensors; they are none where guards are checked.
        if argument.pass_arg_as_tensor:
            continue
        if type(example.storage_offset()) is int:
            source = TensorPropertySource(argument.source, TensorProperty.STORAGE_OFFSET)
            guard = source.make_guard(GuardBuilder.EQUALS_MATCH)
            context.guards_context.dynamo_guards.add(guard)


def _addresses_storages(graph: fx.GraphModule) -> bool:
    return any(
        str(getattr(node.target, "__name__", node.target)).partition(".")[0] in _NAMES
        for module in graph.modules()
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
        if node.op in ("call_method", "call_function")
    )
