"""The graph that a framework's package gives to the execution core: nodes in order, each placed.

Values are numbered: the inputs of the graph, and every result of every node. What a value is, and
how a node computes, is known to the framework's package alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.report.fallback_reason import FallbackReason


@dataclass(frozen=True, slots=True)
class Node:
    """One computation.

    Attributes:
        name: for messages and reports.
        inputs: values that it reads.
        outputs: values that it makes.
        fallback_reason: why it has to run on the host; None where the device can run it.
        after: indices of nodes that have to run before it although it reads nothing of theirs:
            side effects, mutation, randomness.
        cheap: a constant, a view or a creator that costs less than moving its result: each segment
            that reads it computes it anew. A cheap node has no side effects.
        waits: it waits for what the host nodes that it reads have started; until then other
            segments may run.
        work: what it counts towards making a segment worth a launch: 0 for a view or a scalar.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    fallback_reason: FallbackReason | None = None
    after: tuple[int, ...] = ()
    cheap: bool = False
    work: int = 1
    waits: bool = False

    @property
    def on_device(self) -> bool:
        """Whether the device can run it."""
        return self.fallback_reason is None


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which they can run.

    Attributes:
        inputs: values that a call brings.
        nodes: each reads inputs and results of nodes before it.
        outputs: values that a call returns.

    Raises:
        PjrtBridgeError: a value that is made twice, or read before it is made; an order
            constraint that points forward.
    """

    inputs: tuple[int, ...]
    nodes: Sequence[Node]
    outputs: tuple[int, ...]

    def __post_init__(self) -> None:
        known = set(self.inputs)
        for index, node in enumerate(self.nodes):
            missing = [value for value in node.inputs if value not in known]
            twice = [value for value in node.outputs if value in known]
            if missing or twice or any(not 0 <= before < index for before in node.after):
                raise PjrtBridgeError(
                    f"node {node.name!r} at {index}: reads {missing} before they are made, makes "
                    f"{twice} again, or comes after {node.after}; nodes must be in running order"
                )
            known.update(node.outputs)
        missing = [value for value in self.outputs if value not in known]
        if missing:
            raise PjrtBridgeError(f"the graph returns {missing}, which no node makes")
