"""Programs of segments: values, lifetimes, work under way, failures, what crossed."""

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings

from pjrt_bridge.mixed.execution import CallRecord, Runner
from pjrt_bridge.mixed.graph import Graph, Node
from pjrt_bridge.mixed.partition import partition
from pjrt_bridge.mixed.program import MixedProgram
from tests.mixed.test_partition import HOST, compute, graphs, run_whole


def runners(graph: Graph) -> tuple[Sequence[Any], list[Runner]]:
    segments = partition(graph).segments

    def runner(segment: Any) -> Runner:
        def run(given: list[Any], call: CallRecord) -> Sequence[Any]:
            values = dict(zip(segment.inputs, given, strict=True))
            for index in segment.nodes:
                compute(graph.nodes[index], values)
            return [values[value] for value in segment.outputs]

        return run

    return segments, [runner(segment) for segment in segments]


@settings(max_examples=150)
@given(graphs())
def test_a_program_computes_what_the_graph_computes(graph: Graph) -> None:
    segments, run = runners(graph)
    program = MixedProgram(graph, segments, run)
    for _ in range(2):
        arguments: list[Any] = [("input", value) for value in graph.inputs]
        assert program.run(arguments, CallRecord(len(segments))) == run_whole(graph)
        assert arguments == []


class Value:
    pass


def chain(length: int) -> Graph:
    nodes = [Node(f"n{i}", (i,), (i + 1,), HOST if i % 2 else None) for i in range(length)]
    return Graph((0,), nodes, (length,))


def program_of(*steps: Runner) -> MixedProgram:
    graph = chain(len(steps))
    return MixedProgram(graph, partition(graph).segments, steps)


def test_values_are_dropped_after_their_last_use() -> None:
    made: list[weakref.ref[Value]] = []
    alive: list[int] = []

    def run(values: list[Any], call: CallRecord) -> list[Any]:
        gc.collect()
        alive.append(sum(ref() is not None for ref in made))
        result = Value()
        made.append(weakref.ref(result))
        return [result]

    program_of(*[run] * 6).run([Value()], CallRecord(6))
    # Only the segment's own input is alive while it runs.
    assert alive == [0, 1, 1, 1, 1, 1]


def step(values: list[Any], call: CallRecord) -> list[Any]:
    return [values[0] + 1]


def test_an_exception_passes_through_and_the_program_runs_again() -> None:
    fails = [True]

    def flaky(values: list[Any], call: CallRecord) -> list[Any]:
        if fails[0]:
            raise ZeroDivisionError("mine")
        return step(values, call)

    program = program_of(step, flaky, step)
    with pytest.raises(ZeroDivisionError, match="mine"):
        program.run([1], CallRecord(3))
    fails[0] = False
    assert program.run([1], CallRecord(3)) == [4]


def test_inputs_can_be_outputs_and_nobody_reads_some() -> None:
    assert MixedProgram(Graph((0, 1), [], (1, 1)), [], []).run(["a", "b"], CallRecord(0)) == [
        "b",
        "b",
    ]


class Work:
    """Something under way; remembers how it ended."""

    def __init__(self, log: list[str], name: str, error: Exception | None = None) -> None:
        self.log, self.name, self.error = log, name, error

    def finish(self) -> None:
        if self.error is not None:
            raise self.error
        self.log.append(f"finished {self.name}")

    def abandon(self) -> None:
        self.log.append(f"abandoned {self.name}")


def starting(work: Work) -> Runner:
    def run(values: list[Any], call: CallRecord) -> list[Any]:
        call.began(work)
        work.log.append(f"began {work.name}")
        return step(values, call)

    return run


def test_a_call_ends_when_all_that_it_started_has_ended() -> None:
    log: list[str] = []
    program = program_of(starting(Work(log, "a")), step, starting(Work(log, "b")))
    assert program.run([0], CallRecord(3)) == [3]
    assert log == ["began a", "began b", "finished b", "finished a"]


def test_an_exception_leaves_when_nothing_is_under_way() -> None:
    log: list[str] = []

    def fails(values: list[Any], call: CallRecord) -> list[Any]:
        raise KeyError("host")

    with pytest.raises(KeyError, match="host"):
        program_of(starting(Work(log, "a")), fails).run([0], CallRecord(2))
    assert log == ["began a", "abandoned a"]


def test_work_that_fails_at_the_end_ends_the_rest() -> None:
    log: list[str] = []
    works = [Work(log, "a"), Work(log, "b", MemoryError("full"))]
    with pytest.raises(MemoryError, match="full"):
        program_of(*map(starting, works)).run([0], CallRecord(2))
    assert log == ["began a", "began b", "abandoned b", "abandoned a"]


def test_a_timed_call_waits_for_each_segment() -> None:
    log: list[str] = []
    program = program_of(starting(Work(log, "a")), starting(Work(log, "b")))
    call = CallRecord(2, timed=True)
    program.run([0], call)
    assert log == ["began a", "finished a", "began b", "finished b"]
    assert call.seconds is not None
    assert all(seconds > 0 for seconds in call.seconds)
    assert CallRecord(2).seconds is None


def test_bytes_are_counted_for_each_segment_and_for_the_call_around() -> None:
    outer = CallRecord(3)
    outer.at = 2
    inner = CallRecord(2, outer=outer)
    inner.crossed(0, 100, shared=True)
    inner.crossed(1, 20, shared=False)
    inner.crossed(1, 3, shared=True)
    assert (inner.shared, inner.copied) == ([100, 3], [0, 20])
    assert (inner.bytes_shared, inner.bytes_copied) == (103, 20)
    assert (outer.shared, outer.copied) == ([0, 0, 103], [0, 0, 20])
