"""Running a partitioned graph: segments over slots, each value dropped after its last use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from pjrt_bridge.mixed.graph import Graph
from pjrt_bridge.mixed.partition import Segment


class Pending(Protocol):
    """Work that a device segment started in a call."""

    def finish(self) -> None:
        """Wait for it."""

    def abandon(self) -> None:
        """Wait until it reads and writes nothing any more; whether it failed does not matter."""


class Call:
    """One run of a program: what is under way, and what crossed between host and device.

    Args:
        segments: how many the program has.
        timed: wait for each segment before the next, and take its time.
        outer: a call of which this one is a part.

    Attributes:
        at: index of the segment that runs now.
        shared: bytes that crossed in place, for each segment.
        copied: bytes that were copied to cross, for each segment.
        seconds: time of each segment, where the call is timed.
        started: when each began, from `time.perf_counter_ns`, where the call is timed.
    """

    __slots__ = ("_outer", "_pending", "at", "copied", "seconds", "shared", "started")

    def __init__(self, segments: int, *, timed: bool = False, outer: Call | None = None) -> None:
        self.at = 0
        self.shared = [0] * segments
        self.copied = [0] * segments
        self.seconds = [0.0] * segments if timed else None
        self.started = [0] * segments
        self._pending: list[Pending] = []
        self._outer = outer

    @property
    def bytes_shared(self) -> int:
        """Bytes that crossed in place."""
        return sum(self.shared)

    @property
    def bytes_copied(self) -> int:
        """Bytes that were copied to cross."""
        return sum(self.copied)

    def run(self, runner: Runner, values: list[Any]) -> Sequence[Any]:
        """What a runner gives for the current segment; takes the time if the call is timed."""
        if self.seconds is None:
            return runner(values, self)
        started = self.started[self.at] = time.perf_counter_ns()
        results = runner(values, self)
        self.finish()
        self.seconds[self.at] = (time.perf_counter_ns() - started) / 1e9
        return results

    def crossed(self, at: int, nbytes: int, *, shared: bool) -> None:
        """Count a value that crossed between the host and the device segment at an index."""
        (self.shared if shared else self.copied)[at] += nbytes
        if self._outer is not None:
            self._outer.crossed(self._outer.at, nbytes, shared=shared)

    def began(self, work: Pending) -> None:
        """Note work that has to end before the call does."""
        self._pending.append(work)

    def finish(self) -> None:
        """Wait for all that is under way; a failure raises as the work's `finish` does."""
        while self._pending:
            self._pending[-1].finish()
            self._pending.pop()

    def abandon(self) -> None:
        """Wait for all that is under way, and forget it."""
        while self._pending:
            self._pending.pop().abandon()


Runner = Callable[[list[Any], Call], Sequence[Any]]
"""Runs one segment: values of its inputs in, values of its outputs out, in the segment's order.

What a value is belongs to the frontend; a runner accepts what the runners before it gave. It may
return before its results are there, and then tells the call.
"""


class _Step(NamedTuple):
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
            _Step(
                run=runner,
                reads=tuple(slots[value] for value in segment.inputs),
                writes=tuple(slots[value] for value in segment.outputs),
                drops=tuple(drops),
            )
            for segment, runner, drops in zip(segments, runners, ends, strict=True)
        )

    def run(self, arguments: list[Any], call: Call) -> list[Any]:
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
