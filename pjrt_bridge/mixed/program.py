"""Running a partitioned graph: segments over slots, each value dropped after its last use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt_bridge.mixed.graph import Graph
from pjrt_bridge.mixed.partition import Segment

Runner = Callable[[list[Any]], Sequence[Any]]
"""Runs one segment: values of its inputs in, values of its outputs out, in the segment's order.

What a value is belongs to the frontend; a runner accepts what the runners before it gave.
"""


@dataclass(frozen=True, slots=True)
class _Step:
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
        self._unread = tuple(
            slots[value]
            for value in graph.inputs
            if slots[value] not in last and slots[value] not in kept
        )
        self._steps = tuple(
            _Step(
                run=runner,
                reads=tuple(slots[value] for value in segment.inputs),
                writes=tuple(slots[value] for value in segment.outputs),
                drops=tuple(slot for slot, end in last.items() if end == step and slot not in kept),
            )
            for step, (segment, runner) in enumerate(zip(segments, runners, strict=True))
        )

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        """The values of the graph's outputs; a segment's exception passes through unchanged."""
        slots: list[Any] = [*arguments, *[None] * (self._size - len(arguments))]
        for slot in self._unread:
            slots[slot] = None
        for step in self._steps:
            values = step.run([slots[slot] for slot in step.reads])
            for slot, value in zip(step.writes, values, strict=True):
                slots[slot] = value
            # Also the local names: they would keep the values of the last segment alive.
            del values
            value = None
            for slot in step.drops:
                slots[slot] = None
        return [slots[slot] for slot in self._results]
