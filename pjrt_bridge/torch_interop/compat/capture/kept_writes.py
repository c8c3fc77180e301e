"""Writes into tensors of one number, which Dynamo takes for reads of the number.

Dynamo knows the number in a 0-d tensor of float64 that a call brings, and compiles that number in
where nothing of the tensor but its number is used. It then drops each node of the graph whose
result is that tensor and whose users read the number alone. What writes into the tensor in place is
such a node (torch 2.13), mostly one without any user: `v.neg_()` was forgotten, with every backend.
"""

from __future__ import annotations

from typing import Any

from torch._dynamo.output_graph import OutputGraph

_PROMISE = "example_value"


def keep_writes_into_numbers() -> None:
    """Have Dynamo, with any backend, drop no more than what a call brings.

    Nothing is changed where PyTorch has no such step.
    """
    graphs: Any = OutputGraph
    step = getattr(graphs, "remove_tensorify_specialized_graphargs", None)
    if step is None:
        return

    def without_calls(self: OutputGraph) -> None:
        # The step passes over nodes without a promise.
        hidden: list[tuple[dict[str, Any], Any]] = [
            (node.meta, node.meta.pop(_PROMISE))
            for node in self.graph.nodes
            if node.op != "placeholder" and _PROMISE in node.meta
        ]
        try:
            step(self)
        finally:
            for meta, promise in hidden:
                meta[_PROMISE] = promise

    graphs.remove_tensorify_specialized_graphargs = without_calls
