"""Running a partitioned graph: segments over slots, each value dropped after its last use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pjrt_bridge.mixed.execution import CallRecord, Runner
from pjrt_bridge.mixed.graph import Graph
from pjrt_bridge.mixed.partition import Segment


class _SegmentRun(NamedTuple):
    run: Runner
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    drops: tuple[int, ...]


class MixedProgram:
    """Segments in running order over an array of slots.

    A program holds no values between calls, so it may run in several threads at once, and again
    after a segment has raised.

    Args:
        graph: what was partitioned.
        segments: its parts, in running order.
        runners: for each segment what runs it.
    """

    def __init__(
        self, graph: Graph, segments: Sequence[Segment], runners: Sequence[Runner]
    ) -> None:
        crossing = [value for segment in segments for value in segment.outputs]
        slots = {value: slot for slot, value in enumerate((*graph.inputs, *crossing))}
        self._size = len(slots)
        self._results = tuple(slots[value] for value in graph.outputs)
        kept = set(self._results)
        last = {
            slots[value]: step
            for step, segment in enumerate(segments)
            for value in (*segment.inputs, *segment.outputs)
        }
        ends: list[list[int]] = [[] for _ in segments]
        for slot, step in last.items():
            if slot not in kept:
                ends[step].append(slot)
        self._unread = tuple(
            slots[value]
            for value in graph.inputs
            if slots[value] not in last and slots[value] not in kept
        )
        self._steps = tuple(
            _SegmentRun(
                run=runner,
                reads=tuple(slots[value] for value in segment.inputs),
                writes=tuple(slots[value] for value in segment.outputs),
                drops=tuple(drops),
            )
            for segment, runner, drops in zip(segments, runners, ends, strict=True)
        )

    def run(self, arguments: list[Any], call: CallRecord) -> list[Any]:
        """The values of the graph's outputs, all of them there; empties the list of arguments.

        A segment's exception passes through unchanged, once nothing of the call is under way.
        """
        slots: list[Any] = [*arguments, *[None] * (self._size - len(arguments))]
        arguments.clear()
        for slot in self._unread:
            slots[slot] = None
        try:
            for at, (runner, reads, writes, drops) in enumerate(self._steps):
                call.at = at
                values = call.run(runner, [slots[slot] for slot in reads])
                for slot, value in zip(writes, values, strict=True):
                    slots[slot] = value
                # Also the local names: they would keep the values of the last segment alive.
                del values
                value = None
                for slot in drops:
                    slots[slot] = None
            call.finish()
        except BaseException:
            call.abandon()
            raise
        return [slots[slot] for slot in self._results]
