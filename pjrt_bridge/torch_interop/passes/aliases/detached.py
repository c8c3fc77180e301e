"""`detach` stays in a graph only where it says how results are related.

In eager a tensor and what `detach` gives of it, or `data`, share memory, and no gradients: neither
is a view of the other. In a functional graph `detach` computes nothing.

Before: `%d = detach(%y); %a = mul(%d, 2); return (%y, %a)`. After: `%a = mul(%y, 2)`.
"""

from __future__ import annotations

from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.aliases.chains import DETACH, chain_of


def remove_detached(graph: fx.Graph) -> None:
    """Remove each `detach` that no result is a view of, or its result.

    Args:
        graph: a functional graph, changed in place.
    """
    wanted = {
        view for result in graph.output_node().all_input_nodes for view in chain_of(result).views
    }
    for node in list(graph.nodes):
        if compat.operator_name(node.target) == DETACH and node not in wanted:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
