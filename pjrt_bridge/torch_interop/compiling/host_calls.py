"""Warnings and records of calls that PyTorch runs because their sizes are not compiled."""

from __future__ import annotations

import threading
from collections import Counter

from pjrt_bridge.mixed.records import GraphRecord
from pjrt_bridge.mixed.variants import LIMIT, HostReason
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.report.wording import plural
from pjrt_bridge.torch_interop.compiling.target import Target
from pjrt_bridge.torch_interop.passes.padding import GraphPadding

MANY = 64
"""Calls that PyTorch runs before the user is told."""

_WHY: dict[HostReason, str] = {
    "new": "that had not come often enough to be compiled",
    "compiling": "that were being compiled beside the calls",
    "full": f"beyond the {LIMIT} that are compiled",
}


class HostCalls:
    """Counts these calls of one graph, and has the ledger keep the graph from the first of them.

    Args:
        target: what the graph is compiled for.
        record: of the graph as one host segment.
        padding: pads sizes; None where none are padded.
    """

    def __init__(self, target: Target, record: GraphRecord, padding: GraphPadding | None) -> None:
        self._target = target
        self._record = record
        self._padding = padding
        self._counts: Counter[HostReason] = Counter()
        self._lock = threading.Lock()

    def add(self, why: HostReason) -> None:
        """Note a call. The user is told once there are many, or more sizes than are kept."""
        with self._lock:
            is_first = not self._counts
            self._counts[why] += 1
            self._record.segments[0].fallback_reasons[:] = [
                FallbackReason("", self._summary(), "sizes")
            ]
        if is_first:
            self._target.ledger.add(self._record)
        if self._counts["full"] == 1 or self._counts.total() == MANY:
            self._target.ledger.warn_once(
                f"plugin {self._target.plugin!r} does not run all calls of the "
                f"{self._record.kind} graph: its sizes keep changing: those that come often are "
                f"compiled, {LIMIT} at most, and PyTorch runs the others{self._unpadded()}. Fewer "
                "sizes help: pad them in the model, or use a cache of a fixed size"
            )

    def _summary(self) -> str:
        counts = [(count, _WHY[why]) for why, count in self._counts.items()]
        parts = ", ".join(f"{count} of sizes {text}" for count, text in counts)
        total = plural(sum(self._counts.values()), "call")
        return f"PyTorch ran {total}: {parts}{self._unpadded()}"

    def _unpadded(self) -> str:
        why = () if self._padding is None else self._padding.reasons()
        return f"; they are not padded because of {'; '.join(why)}" if why else ""
