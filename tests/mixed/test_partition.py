"""Laws of the partition, over random graphs."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.mixed.graph import Graph, Node
from pjrt_bridge.mixed.partition import Partition, Segment, partition
from pjrt_bridge.report.fallback_reason import FallbackReason
from tests.counting import calls

HOST = FallbackReason("op", "no lowering", "unsupported")


@st.composite
def graphs(draw: st.DrawFn, largest: int = 25) -> Graph:
    inputs = tuple(range(draw(st.integers(1, 3))))
    values = list(inputs)
    nodes: list[Node] = []
    for index in range(draw(st.integers(0, largest))):
        reads = tuple(draw(st.lists(st.sampled_from(values), max_size=3)))
        makes = tuple(range(len(values), len(values) + draw(st.integers(0, 2))))
        cheap = draw(st.integers(0, 3)) == 0
        after = draw(st.lists(st.integers(0, index - 1), max_size=2)) if index else []
        # What is computed anew where it is read has no side effects, hence no order.
        after = [] if cheap else [before for before in after if not nodes[before].cheap]
        reason = draw(st.sampled_from([None, None, HOST]))
        work = 0 if cheap else draw(st.integers(0, 1))
        waits = reason is not None and draw(st.booleans())
        nodes.append(Node(f"n{index}", reads, makes, reason, tuple(after), cheap, work, waits))
        values.extend(makes)
    outputs = tuple(draw(st.lists(st.sampled_from(values), max_size=4)))
    return Graph(inputs, nodes, outputs)


def compute(node: Node, values: dict[int, object]) -> None:
    for result in node.outputs:
        values[result] = (node.name, result, tuple(values[value] for value in node.inputs))


def run_whole(graph: Graph) -> list[object]:
    values: dict[int, object] = {value: ("input", value) for value in graph.inputs}
    for node in graph.nodes:
        compute(node, values)
    return [values[value] for value in graph.outputs]


def run_parts(found: Partition) -> list[object]:
    graph = found.graph
    slots: dict[int, object] = {value: ("input", value) for value in graph.inputs}
    for segment in found.segments:
        values = {value: slots[value] for value in segment.inputs}
        for index in segment.nodes:
            compute(graph.nodes[index], values)
        slots.update({value: values[value] for value in segment.outputs})
    return [slots[value] for value in graph.outputs]


@settings(max_examples=150)
@given(graphs(), st.integers(1, 4))
def test_the_parts_compute_what_the_whole_computes(graph: Graph, least: int) -> None:
    assert run_parts(partition(graph, min_segment=least)) == run_whole(graph)


@settings(max_examples=150)
@given(graphs(), st.integers(1, 4))
def test_nodes_run_where_they_can_and_once_unless_cheap(graph: Graph, least: int) -> None:
    found = partition(graph, min_segment=least)
    times = [0] * len(graph.nodes)
    for segment in found.segments:
        for index in segment.nodes:
            times[index] += 1
            assert graph.nodes[index].on_device or not segment.on_device
    for node, count in zip(graph.nodes, times, strict=True):
        assert count == 1 or node.cheap
    kinds = [segment.on_device for segment in found.segments]
    assert all(here != following for here, following in itertools.pairwise(kinds))


@settings(max_examples=150)
@given(graphs(), st.integers(1, 4))
def test_device_segments_are_worth_a_launch(graph: Graph, least: int) -> None:
    found = partition(graph, min_segment=least)
    for segment in found.segments:
        if segment.on_device:
            nodes = [found.graph.nodes[index] for index in segment.nodes]
            assert sum(node.work for node in nodes) >= least
    for before, after in zip(graph.nodes, found.graph.nodes, strict=True):
        if before != after:
            # Only what the device could run was moved, and it says why.
            assert before.fallback_reason is None
            assert after.fallback_reason is not None
            assert (after.fallback_reason.operator, after.fallback_reason.kind) == (
                after.name,
                "small",
            )
            assert ("not worth a launch" in after.fallback_reason.reason) == (
                "min_segment" not in after.fallback_reason.reason
            )


@settings(max_examples=150)
@given(graphs())
def test_order_is_kept(graph: Graph) -> None:
    position = {
        index: (at, segment.nodes.index(index))
        for at, segment in enumerate(partition(graph).segments)
        for index in segment.nodes
        if not graph.nodes[index].cheap
    }
    for index, node in enumerate(graph.nodes):
        for before in node.after:
            assert position[before] < position[index]


def alternations(graph: Graph) -> int:
    """Segments that a split needs at least: the longest alternating path, by brute force."""
    longest: list[int] = []
    maker = {value: index for index, node in enumerate(graph.nodes) for value in node.outputs}
    for node in graph.nodes:
        before = [*(maker[value] for value in node.inputs if value in maker), *node.after]
        changes = [
            longest[other] + (graph.nodes[other].on_device != node.on_device) for other in before
        ]
        longest.append(max(changes, default=1))
    return max(longest, default=0)


@settings(max_examples=150)
@given(graphs())
def test_there_are_no_more_segments_than_needed(graph: Graph) -> None:
    plain = Graph(
        graph.inputs,
        [Node(n.name, n.inputs, n.outputs, n.fallback_reason, n.after) for n in graph.nodes],
        graph.outputs,
    )
    needed = alternations(plain)
    # One more where paths of the same length begin on different sides.
    assert needed <= len(partition(plain).segments) <= needed + 1


def test_a_constant_is_computed_where_it_is_read() -> None:
    nodes = [
        Node("constant", (), (1,), cheap=True),
        Node("device", (0, 1), (2,)),
        Node("host", (2, 1), (3,), HOST),
    ]
    device, host = partition(Graph((0,), nodes, (3,))).segments
    assert device == Segment(True, (0, 1), (0,), (2,))
    assert host == Segment(False, (0, 2), (2,), (3,))


def test_a_view_that_is_returned_is_computed_again_by_who_reads_it() -> None:
    nodes = [
        Node("device", (0,), (1,)),
        Node("view", (1,), (2,), cheap=True, work=0),
        Node("host", (2,), (3,), HOST),
    ]
    device, host = partition(Graph((0,), nodes, (2, 3))).segments
    assert device == Segment(True, (0, 1), (0,), (1, 2))
    assert host == Segment(False, (1, 2), (1,), (3,))


def test_a_view_of_a_host_result_stays_there() -> None:
    nodes = [
        Node("device", (0,), (1,)),
        Node("host", (1,), (2,), HOST),
        Node("view", (2,), (3,), cheap=True, work=0),
        Node("scalar", (3,), (4,), work=0),
    ]
    found = partition(Graph((0,), nodes, (3, 4)))
    assert [segment.nodes for segment in found.segments] == [(0,), (1, 2, 3)]
    assert [segment.on_device for segment in found.segments] == [True, False]
    assert found.graph.nodes[3].fallback_reason == FallbackReason(
        "scalar", "views and scalars alone are not worth a launch", "small"
    )


def test_small_segments_join_the_host_around_them() -> None:
    def chain(*kinds: str) -> Graph:
        nodes = [
            Node(f"n{i}", (i,), (i + 1,), HOST if kind == "h" else None)
            for i, kind in enumerate(kinds)
        ]
        return Graph((0,), nodes, (len(kinds),))

    found = partition(chain(*"hddhdhddd"), min_segment=2)
    assert [len(segment.nodes) for segment in found.segments] == [1, 2, 3, 3]
    found = partition(chain(*"hddhdhddd"), min_segment=3)
    assert [len(segment.nodes) for segment in found.segments] == [6, 3]
    assert partition(chain("d"), min_segment=2).segments[0].on_device is False


def test_each_node_is_as_much_work_as_in_a_small_graph() -> None:
    def divide(count: int) -> None:
        nodes = [
            Node(f"n{i}", (i, max(0, i - 7)), (i + 1,), HOST if i % 100 == 0 else None)
            for i in range(count)
        ]
        found = partition(Graph((0,), nodes, (count,)))
        assert len(found.segments) == count // 50

    assert calls(lambda: divide(20_000)) < 10.5 * calls(lambda: divide(2_000))


@pytest.mark.parametrize(
    ("nodes", "outputs", "message"),
    [
        ([Node("a", (5,), (1,))], (), r"'a' at 0: reads \[5\] before"),
        ([Node("a", (0,), (0,))], (), r"makes \[0\] again"),
        ([Node("a", (0,), (1,), after=(0,))], (), r"comes after \(0,\)"),
        ([], (9,), r"returns \[9\], which no node makes"),
    ],
)
def test_a_graph_out_of_order(nodes: list[Node], outputs: tuple[int, ...], message: str) -> None:
    with pytest.raises(PjrtBridgeError, match=message):
        Graph((0,), nodes, outputs)
