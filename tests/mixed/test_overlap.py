"""Device work between what starts and what waits for it."""

from pjrt_bridge.mixed.graph import Graph, Node
from pjrt_bridge.mixed.partition import partition
from pjrt_bridge.report.fallback_reason import FallbackReason

HOST = FallbackReason("op", "no lowering", "unsupported")


def segments(nodes: list[Node], outputs: tuple[int, ...], **options: int) -> list[str]:
    """Each segment as the names of its nodes, on the host in brackets."""
    found = partition(Graph((0,), nodes, outputs), **options)
    names = [" ".join(nodes[index].name for index in part.nodes) for part in found.segments]
    return [
        text if part.on_device else f"[{text}]"
        for text, part in zip(names, found.segments, strict=True)
    ]


A = Node("a", (0,), (1,))
B = Node("b", (0,), (2,))
START = Node("start", (1,), (3,), HOST)
WAIT = Node("wait", (3,), (4,), HOST, waits=True)
SUM = Node("sum", (4, 2), (5,))


def test_work_that_a_start_does_not_need_runs_behind_it() -> None:
    found = segments([A, B, START, WAIT, SUM], (5,))
    assert found == ["a", "[start]", "b", "[wait]", "sum"]


def test_work_that_is_only_returned_overlaps_too() -> None:
    assert segments([A, B, START, WAIT], (4, 2)) == ["a", "[start]", "b", "[wait]"]


def test_work_in_front_of_a_start_stays() -> None:
    needed = Node("start", (1, 2), (3,), HOST)
    assert segments([A, B, needed, WAIT, SUM], (5,)) == ["a b", "[start wait]", "sum"]


def test_without_work_to_move_nothing_changes() -> None:
    after = Node("sum", (4,), (5,))
    assert segments([A, START, WAIT, after], (5,)) == ["a", "[start wait]", "sum"]
    light = Node("b", (0,), (2,), work=0)
    assert segments([A, light, START, WAIT, SUM], (5,)) == ["a b", "[start wait]", "sum"]


def test_both_sides_are_worth_a_launch() -> None:
    nodes = [A, Node("b1", (0,), (6,)), Node("b2", (6,), (2,)), START, WAIT, SUM]
    assert segments(nodes, (5,)) == ["a", "[start]", "b1 b2", "[wait]", "sum"]
    more = [*nodes, Node("sum2", (5, 4), (7,))]
    assert segments(more, (7,), min_segment=2) == ["a b1 b2", "[start wait]", "sum sum2"]


def test_a_host_node_that_reads_what_was_waited_for_follows() -> None:
    reader = Node("reader", (4,), (6,), HOST)
    last = Node("sum", (6, 2), (5,))
    found = segments([A, B, START, WAIT, reader, last], (5,))
    assert found == ["a", "[start]", "b", "[wait reader]", "sum"]


def test_starts_one_behind_another() -> None:
    """Each gets its work; the second start reads what the first wait gave."""
    nodes = [
        A,
        B,
        START,
        WAIT,
        Node("c", (4,), (6,)),
        Node("d", (4,), (7,)),
        Node("start2", (6,), (8,), HOST),
        Node("wait2", (8,), (9,), HOST, waits=True),
        Node("end", (9, 7, 2), (10,)),
    ]
    assert segments(nodes, (10,)) == [
        "a",
        "[start]",
        "b",
        "[wait]",
        "c",
        "[start2]",
        "d",
        "[wait2]",
        "end",
    ]


def test_what_is_computed_where_it_is_read_passes_on_what_it_reads() -> None:
    """`view` is cheap: whoever reads it needs `b`."""
    view = Node("view", (2,), (6,), cheap=True, work=0)
    needs = Node("start", (1, 6), (3,), HOST)
    assert segments([A, B, view, needs, WAIT], (4,)) == ["a b", "[view start wait]"]
    behind = Node("sum", (4, 6), (5,))
    assert segments([A, B, view, START, WAIT, behind], (5,)) == [
        "a",
        "[start]",
        "b",
        "[wait]",
        "view sum",
    ]
