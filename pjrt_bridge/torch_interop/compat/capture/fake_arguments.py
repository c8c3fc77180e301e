"""Graphs that the user calls with FakeTensors, to learn shapes: these have no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor


def has_fake_arguments(graph: fx.GraphModule) -> bool:
    """Whether a graph is compiled for FakeTensors; Dynamo compiles another one for other tensors.

    Args:
        graph: from Dynamo, while it is compiled.
    """
    arguments = (node.meta.get("grapharg") for node in graph.graph.find_nodes(op="placeholder"))
    return any(one is not None and isinstance(one.example, FakeTensor) for one in arguments)


def apart_from_fakes(compiled: Callable[..., Any], graph: fx.GraphModule) -> Callable[..., Any]:
    """A compiled graph that gives FakeTensors in a FakeTensorMode, without arguments that are some.

    Dynamo compiles no other graph where only the mode says what the results are to be.
    """
    placeholders = graph.graph.find_nodes(op="placeholder")
    if any(isinstance(node.meta.get("example_value"), torch.Tensor) for node in placeholders):
        return compiled

    def call(*args: Any) -> Any:
        is_fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
        return graph.forward(*args) if is_fake else compiled(*args)

    return call
