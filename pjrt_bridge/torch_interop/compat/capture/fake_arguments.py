"""Graphs that the user calls with FakeTensors, to learn shapes: these have no memory."""

from __future__ import annotations

from torch import fx
from torch._subclasses import FakeTensor


def has_fake_arguments(graph: fx.GraphModule) -> bool:
    """Whether a graph is compiled for FakeTensors; Dynamo compiles another one for other tensors.

    Args:
        graph: from Dynamo, while it is compiled.
    """
    arguments = (node.meta.get("grapharg") for node in graph.graph.find_nodes(op="placeholder"))
    return any(one is not None and isinstance(one.example, FakeTensor) for one in arguments)
