"""A warning for graphs that are compiled again and again for new sizes."""

from __future__ import annotations

import threading

from pjrt_bridge.errors import BridgeWarning
from pjrt_bridge.mixed.variants import LIMIT
from pjrt_bridge.torch_interop.compiling.target import Target
from pjrt_bridge.torch_interop.passes.padding import GraphPadding

MANY = 32
"""Programs of one graph, each for the sizes of a call, after which the user is told."""


class ManySizes:
    """Counts the programs of a graph that PyTorch cannot run in their place.

    Args:
        target: what the graph is compiled for.
        kind: of the graph.
        padding: pads sizes; None where none are padded.
    """

    def __init__(self, target: Target, kind: str, padding: GraphPadding | None) -> None:
        self._target = target
        self._kind = kind
        self._padding = padding
        self._count = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """Note a program whose sizes were not padded."""
        with self._lock:
            self._count += 1
            if self._count == MANY:
                why = () if self._padding is None else self._padding.reasons()
                because = f", because of {'; '.join(why)}" if why else ""
                self._target.ledger.warn_once(
                    f"plugin {self._target.plugin!r} compiled the {self._kind} graph for {MANY} "
                    f"sizes, and compiles it for each further one: they are not padded{because}. "
                    f"The {LIMIT} programs that were used last are kept. Fewer sizes help: pad "
                    "them in the model, or use a cache of a fixed size",
                    BridgeWarning,
                )
