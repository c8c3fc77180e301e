import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings

from pjrt_bridge.mixed.graph import Graph, Node
from pjrt_bridge.mixed.partition import partition
from pjrt_bridge.mixed.program import MixedProgram, Runner
from tests.mixed.test_partition import compute, graphs, run_whole


def runners(graph: Graph) -> tuple[list[Any], list[Runner]]:
    segments = partition(graph)

    def runner(segment: Any) -> Runner:
        def run(given: list[Any]) -> Sequence[Any]:
            values = dict(zip(segment.inputs, given, strict=True))
            for index in segment.nodes:
                compute(graph.nodes[index], values)
            return [values[value] for value in segment.outputs]

        return run

    return segments, [runner(segment) for segment in segments]


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_a_program_computes_what_the_graph_computes(graph: Graph) -> None:
    program = MixedProgram(graph, *runners(graph))
    arguments = [("input", value) for value in graph.inputs]
    for _ in range(2):
        assert program.run(arguments) == run_whole(graph)


class Value:
    pass


def chain(length: int) -> Graph:
    nodes = [Node(f"n{i}", (i,), (i + 1,), "host" if i % 2 else None) for i in range(length)]
    return Graph((0,), nodes, (length,))


def test_values_are_dropped_after_their_last_use() -> None:
    graph = chain(6)
    made: list[weakref.ref[Value]] = []
    alive: list[int] = []

    def run(values: list[Any]) -> list[Any]:
        gc.collect()
        alive.append(sum(ref() is not None for ref in made))
        result = Value()
        made.append(weakref.ref(result))
        return [result]

    segments = partition(graph)
    MixedProgram(graph, segments, [run] * len(segments)).run([Value()])
    # Only the segment's own input is alive while it runs.
    assert alive == [0, 1, 1, 1, 1, 1]


def test_an_exception_passes_through_and_the_program_runs_again() -> None:
    graph = chain(3)
    fails = [True]

    def step(values: list[Any]) -> list[Any]:
        return [values[0] + 1]

    def flaky(values: list[Any]) -> list[Any]:
        if fails[0]:
            raise ZeroDivisionError("mine")
        return step(values)

    program = MixedProgram(graph, partition(graph), [step, flaky, step])
    with pytest.raises(ZeroDivisionError, match="mine"):
        program.run([1])
    fails[0] = False
    assert program.run([1]) == [4]


def test_inputs_can_be_outputs_and_nobody_reads_some() -> None:
    assert MixedProgram(Graph((0, 1), [], (1, 1)), [], []).run(["a", "b"]) == ["b", "b"]
