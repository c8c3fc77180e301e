"""A graph's segments as an SVG diagram: boxes in two lanes, arrows from producer to consumer.

Time runs from left to right, and continues in a further row where one is full. There is a lane for
the device and one for the host, so an arrow between lanes is a transfer. Arrows are drawn between
and outside of the lanes, never through a box. An arrow to another row is drawn as two short ones,
out of its producer and into its consumer, each labelled with the numbers of the boxes at the other
end.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pjrt_bridge.report import wording
from pjrt_bridge.report.data import GraphReport, SegmentReport

# Lengths in CSS pixels.
_WIDTH = 1132
_BOX_WIDTH = 156
_BOX_HEIGHT = 58
_STEP = 96
"""From one box to the next, at least: boxes in different lanes overlap sideways."""
_SPACE = 34
"""Between boxes of one lane, at least."""
_BETWEEN = 58
"""Between the lanes."""
_OUTSIDE = 62
"""Above the upper lane and below the lower one, for arrows that pass boxes."""
_LEFT = 76
_RIGHT = 30
_CHARACTERS = 20
"""Characters of an operator's name that fit into a box."""
_NOTE = 38
"""From a box to the label of an arrow from or to another row."""


_Readers = Sequence[Sequence[int]]
"""For each segment the segments that read from it."""


@dataclass(frozen=True)
class _Rectangle:
    x: float
    y: float
    row: int
    upper: bool
    before: int | None
    """Number of the box before it in its lane and row."""

    @property
    def right(self) -> float:
        return self.x + _BOX_WIDTH

    @property
    def middle(self) -> float:
        return self.y + _BOX_HEIGHT / 2

    @property
    def outer(self) -> float:
        """The edge that faces away from the other lane."""
        return self.y if self.upper else self.y + _BOX_HEIGHT

    @property
    def inner(self) -> float:
        """The edge that faces the other lane."""
        return self.y + _BOX_HEIGHT if self.upper else self.y

    @property
    def outwards(self) -> int:
        return -1 if self.upper else 1


def picture(graph: GraphReport, anchor: str) -> str:
    """SVG markup of one graph.

    Args:
        graph: with at least one segment.
        anchor: what the ids of the table's rows begin with; the segment's number follows.
    """
    lanes = _lanes(graph)
    boxes = _place(graph, len(lanes))
    width = max(box.right for box in boxes) + _RIGHT
    height = (boxes[-1].row + 1) * _row_height(len(lanes))
    # In a single row nothing leads to another row.
    top = _OUTSIDE - _NOTE if boxes[-1].row == 0 else 0
    height -= top * len(lanes)
    marker = f"{html.escape(anchor)}head"
    parts = [
        f'<svg class="picture" xmlns="http://www.w3.org/2000/svg" width="{width:g}"'
        f' height="{height:g}" viewBox="0 {top} {width:g} {height:g}" role="img"'
        f' aria-label="{wording.plural(len(boxes), "segment")} in running order">',
        f'<defs><marker id="{marker}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path d="M0 0.5 8 4 0 7.5Z"/></marker></defs>',
    ]
    for row in range(boxes[-1].row + 1):
        for lane, place in enumerate(lanes):
            label = graph.plugin if place == "device" else "host"
            parts.append(_band(place, label, _lane_y(row, lane, len(lanes)), width))
    readers = _readers(graph)
    arrows = [
        *_edges(graph, boxes, readers),
        *_leaving(boxes, readers),
        *_ends(graph, boxes),
    ]
    for path, kind in arrows:
        parts.append(f'<path class="{kind}" d="{path}" marker-end="url(#{marker})"/>')
    for number, (segment, box) in enumerate(zip(graph.segments, boxes, strict=True)):
        parts.append(_drawn(segment, number, box, anchor))
        parts += _notes(segment, number, boxes, readers[number])
    return "".join([*parts, "</svg>"])


def _lanes(graph: GraphReport) -> list[str]:
    used = {segment.placement for segment in graph.segments}
    return [place for place in ("device", "host") if place in used]


def _row_height(lanes: int) -> float:
    if lanes == 1:
        return _OUTSIDE + _BOX_HEIGHT + 16
    return 2 * _OUTSIDE + 2 * _BOX_HEIGHT + _BETWEEN


def _lane_y(row: int, lane: int, lanes: int) -> float:
    return row * _row_height(lanes) + _OUTSIDE + lane * (_BOX_HEIGHT + _BETWEEN)


def _place(graph: GraphReport, lanes: int) -> list[_Rectangle]:
    """Positions of the boxes, rows filled from left to right."""
    boxes: list[_Rectangle] = []
    row = 0
    last: dict[int, int] = {}
    for number, segment in enumerate(graph.segments):
        lane = int(lanes == 2 and segment.placement == "host")
        x = float(_LEFT)
        if last:
            x = boxes[-1].x + _STEP
            if lane in last:
                x = max(x, boxes[last[lane]].right + _SPACE)
            if x + _BOX_WIDTH + _RIGHT > _WIDTH:
                row, last, x = row + 1, {}, float(_LEFT)
        # A single lane has its arrows above.
        boxes.append(_Rectangle(x, _lane_y(row, lane, lanes), row, lane == 0, last.get(lane)))
        last[lane] = number
    return boxes


def _edges(
    graph: GraphReport, boxes: Sequence[_Rectangle], readers: _Readers
) -> Iterator[tuple[str, str]]:
    """One path for each read of each segment."""
    for target, segment in enumerate(graph.segments):
        end = boxes[target]
        for position, source in enumerate(sorted(segment.reads)):
            start = boxes[source]
            into = end.x + _port(position, len(segment.reads), 0.1)
            out = start.x + _port(readers[source].index(target), len(readers[source]), 0.5)
            if start.row != end.row:
                across = end.x + 62 + 7 * (position % 4)
                far = end.outer + _NOTE * end.outwards
                yield f"M{across:g} {far:g}V{end.outer + end.outwards:g}", "edge"
            elif start.upper != end.upper:
                bend = _BETWEEN * -0.6 * start.outwards
                yield _curve(out, start.inner, into, end.inner, bend, -bend), "edge"
            elif end.before == source:
                yield f"M{start.right:g} {start.middle:g}H{end.x - 1:g}", "edge"
            else:
                bend = 30 * start.outwards
                yield _curve(out, start.outer, into, end.outer, bend, bend), "edge"


def _readers(graph: GraphReport) -> _Readers:
    readers: list[list[int]] = [[] for _ in graph.segments]
    for target, segment in enumerate(graph.segments):
        for source in segment.reads:
            readers[source].append(target)
    return readers


def _leaving(boxes: Sequence[_Rectangle], readers: _Readers) -> Iterator[tuple[str, str]]:
    """One arrow out of each box that segments in other rows read from."""
    for number, box in enumerate(boxes):
        if any(boxes[reader].row != box.row for reader in readers[number]):
            x = box.right - 46
            yield f"M{x:g} {box.outer:g}V{box.outer + _NOTE * box.outwards:g}", "leaving"


def _port(position: int, number: int, first: float) -> float:
    """Where on a box's edge one of several arrows begins or ends."""
    return _BOX_WIDTH * (first + 0.4 * (position + 1) / (number + 1))


def _curve(x0: float, y0: float, x1: float, y1: float, bend0: float, bend1: float) -> str:
    return f"M{x0:g} {y0:g}C{x0:g} {y0 + bend0:g} {x1:g} {y1 + bend1:g} {x1:g} {y1:g}"


def _ends(graph: GraphReport, boxes: Sequence[_Rectangle]) -> Iterator[tuple[str, str]]:
    """Short arrows for the graph's arguments and results."""
    for segment, box in zip(graph.segments, boxes, strict=True):
        far = box.outer + 20 * box.outwards
        if segment.takes_arguments:
            yield f"M{box.x + 12:g} {far:g}V{box.outer + box.outwards:g}", "end argument"
        if segment.gives_results:
            yield f"M{box.right - 12:g} {box.outer:g}V{far:g}", "end result"


def _band(place: str, label: str, y: float, width: float) -> str:
    return (
        f'<rect class="band {place}" x="0" y="{y - 8:g}" width="{width:g}"'
        f' height="{_BOX_HEIGHT + 16:g}" rx="10"/>'
        + _text("lane", 12, y + _BOX_HEIGHT / 2 + 4, wording.clip(label, 8))
    )


def _drawn(segment: SegmentReport, number: int, box: _Rectangle, anchor: str) -> str:
    operators = wording.counted(segment.operators.items())
    title = [
        f"Segment {number} on the {segment.placement}",
        *operators,
        *(f"- {wording.clip(str(found), 300)}" for found in segment.fallback_reasons),
    ]
    time = "" if segment.run_seconds is None else wording.duration(segment.run_seconds)
    total = wording.plural(sum(segment.operators.values()), "operator")
    name = wording.clip(operators[0], _CHARACTERS) if operators else ""
    left, right = box.x + 10, box.right - 10
    parts = [
        f'<a class="segment {segment.placement}" href="#{html.escape(anchor)}{number}">',
        f"<title>{html.escape(chr(10).join(title))}</title>",
        f'<rect class="box {segment.placement}" x="{box.x:g}" y="{box.y:g}"'
        f' width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="7"/>',
        _text("number", left, box.y + 17, str(number)),
        _text("time", right, box.y + 17, time, at_end=True) if time else "",
        _text("name", left, box.y + 34, name) if name else "",
        _text("total", left, box.y + 50, total),
        "</a>",
    ]
    return "".join(parts)


def _notes(
    segment: SegmentReport, number: int, boxes: Sequence[_Rectangle], readers: Sequence[int]
) -> Iterator[str]:
    """Labels of the arrows that touch one box only."""
    box = boxes[number]
    near, far = (-26, -_NOTE - 5) if box.upper else (34, _NOTE + 13)
    if segment.takes_arguments:
        yield _text("note", box.x - 2, box.outer + near, "arguments")
    if segment.gives_results:
        yield _text("note", box.right + 2, box.outer + near, "results", at_end=True)
    sources = [str(other) for other in sorted(segment.reads) if boxes[other].row != box.row]
    if sources:
        yield _text("note", box.x - 2, box.outer + far, f"from {_few(sources)}")
    targets = [str(other) for other in readers if boxes[other].row != box.row]
    if targets:
        yield _text("note", box.right - 52, box.outer + far, f"to {_few(targets)}")


def _few(numbers: Sequence[str]) -> str:
    """As many numbers of boxes as there is room for, and how many are left out."""
    room = 1 if any(len(number) > 2 for number in numbers) else 2
    rest = [f"+{len(numbers) - room}"] if len(numbers) > room else []
    return ", ".join([*numbers[:room], *rest])


def _text(kind: str, x: float, y: float, content: str, at_end: bool = False) -> str:
    anchor = ' text-anchor="end"' if at_end else ""
    return f'<text class="{kind}"{anchor} x="{x:g}" y="{y:g}">{html.escape(content)}</text>'
