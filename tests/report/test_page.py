"""The page of a report: what is in it, and what Chromium makes of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings

from pjrt_bridge.report import wording
from pjrt_bridge.report.data import GraphReport, SegmentReport
from pjrt_bridge.report.page import page
from pjrt_bridge.report.report import Report
from tests.report import reports
from tests.report.browser import Browser, Page

SAMPLES = ["nothing", "happy", "joined", "alternating", "several", "hostile"]
PICTURED = ["happy", "joined", "alternating", "several", "hostile"]
EMPTY = {"meta", "rect", "path"}
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "main", "section", "h1", "h2", "p", "div",
    "span", "b", "small", "code", "dl", "dt", "dd", "ul", "li", "details", "summary", "figure",
    "figcaption", "table", "thead", "tbody", "tr", "th", "td", "svg", "defs", "marker", "path",
    "rect", "text", "a",
}  # fmt: skip
Load = Callable[..., Page]


class Reader(HTMLParser):
    """Reads a page and insists that every element is closed where it should be."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(markup)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names))
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in EMPTY
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def having(self, tag: str, name: str) -> list[dict[str, str | None]]:
        """Elements of a class."""
        return [
            attributes
            for found, attributes in self.elements
            if found == tag and name in (attributes.get("class") or "").split()
        ]

    @property
    def shown(self) -> str:
        return " ".join(" ".join(text for tag, text in self.texts if tag != "style").split())


def segments(report: Report) -> Iterator[SegmentReport]:
    for graph in report.graphs:
        yield from graph.segments


@settings(max_examples=30)
@given(reports.reports())
def test_any_report_makes_a_page_that_is_whole(report: Report) -> None:
    markup = page(report)
    markup.encode()
    found = Reader(markup)
    assert len(found.having("rect", "box")) == sum(1 for _ in segments(report))
    assert len(found.having("path", "edge")) == sum(len(part.reads) for part in segments(report))
    for kind in ("device", "host"):
        expected = sum(part.placement == kind for part in segments(report))
        assert len(found.having("a", kind)) == len(found.having("tr", kind)) == expected
    takes = sum(part.takes_arguments for part in segments(report))
    assert len(found.having("path", "argument")) == takes
    gives = sum(part.gives_results for part in segments(report))
    assert len(found.having("path", "result")) == gives


@settings(max_examples=30)
@given(reports.reports())
def test_a_page_leads_nowhere_but_to_itself(report: Report) -> None:
    found = Reader(page(report))
    assert {tag for tag, _ in found.elements} <= ALLOWED
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in found.elements:
        assert not any(name.startswith("on") or name in ("src", "srcset") for name in attributes)
        if "href" in attributes:
            assert tag == "a"
            assert (attributes["href"] or "").removeprefix("#") in ids
        for reference in re.findall(r"url\(([^)]*)\)", " ".join(filter(None, attributes.values()))):
            assert reference.removeprefix("#") in ids
    (style,) = [text for tag, text in found.texts if tag == "style"]
    assert "url(" not in style
    assert "@import" not in style


@settings(max_examples=30)
@given(reports.reports())
def test_a_page_shows_everything(report: Report) -> None:
    shown = Reader(page(report)).shown
    lines = [report.program, *report.breaks, *report.advice]
    for graph in report.graphs:
        lines += [graph.name, graph.kind, graph.plugin, graph.trigger or ""]
    for part in segments(report):
        lines += part.operators
        for reason in part.fallback_reasons:
            lines += [reason.operator, reason.reason, reason.source or ""]
    for line in lines:
        assert wording.printable(line) in shown


def test_neighbours_in_a_lane_are_joined_by_a_straight_line() -> None:
    paths = [str(edge["d"]) for edge in Reader(page(reports.joined())).having("path", "edge")]
    straight = [path for path in paths if re.fullmatch(r"M[\d.]+ [\d.]+H[\d.]+", path)]
    assert len(straight) == 2
    assert len(paths) == 7


def test_hostile_names_are_text() -> None:
    markup = page(reports.hostile())
    assert "<script" not in markup
    assert "\x1b" not in markup
    assert r"<script>alert(1)</script>" in Reader(markup).shown


def test_the_file_is_written(tmp_path: Path) -> None:
    report = reports.hostile()
    path = report.to_html(tmp_path / "report.html")
    assert path == tmp_path / "report.html"
    assert path.read_text(encoding="utf-8") == page(report)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture
def load(browser: Browser, tmp_path: Path) -> Load:
    def open_page(report: Report, *, dark: bool = False, width: int = 1240) -> Page:
        return browser.open(report.to_html(tmp_path / "report.html"), dark=dark, width=width)

    return open_page


@pytest.mark.parametrize("name", SAMPLES)
def test_it_loads_alone_and_without_complaint(name: str, load: Load, tmp_path: Path) -> None:
    loaded = load(getattr(reports, name)())
    assert loaded.problems == []
    assert loaded.requests == [(tmp_path / "report.html").as_uri()]
    assert loaded.ask("document.scripts.length") == 0
    assert loaded.ask("document.compatMode") == "CSS1Compat"
    assert loaded.ask("document.querySelectorAll('parsererror').length") == 0


def test_a_script_in_it_would_not_run(browser: Browser, tmp_path: Path) -> None:
    path = reports.happy().to_html(tmp_path / "report.html")
    evil = "<main><script>document.title = 'changed'</script><img src=x onerror='alert(1)'>"
    path.write_text(path.read_text().replace("<main>", evil))
    loaded = browser.open(path)
    assert loaded.ask("document.title") == "TransformerEncoder"
    refused = [problem for problem in loaded.problems if "Content Security Policy" in problem]
    assert any("inline script" in refusal for refusal in refused)
    assert any("the image" in refusal for refusal in refused)


BOXES = """
[...document.querySelectorAll('section.graph')].map(graph => {
  graph.querySelectorAll('details').forEach(hidden => { hidden.open = true });
  return [...graph.querySelectorAll('rect.box')].map(box => {
    const {x, y, width, height} = box.getBoundingClientRect();
    const texts = [...box.parentNode.querySelectorAll('text')].map(text => {
      const bounds = text.getBoundingClientRect();
      return [bounds.left - x, bounds.top - y, x + width - bounds.right, y + height - bounds.bottom]
    });
    return {x, y, width, height, texts};
  });
})
"""


@pytest.mark.parametrize("name", PICTURED)
def test_boxes_are_seen_apart_and_hold_their_text(name: str, load: Load) -> None:
    report: Report = getattr(reports, name)()
    drawn = load(report).ask(BOXES)
    assert [len(boxes) for boxes in drawn] == [len(graph.segments) for graph in report.graphs]
    for boxes in drawn:
        for number, box in enumerate(boxes):
            assert box["width"] > 100
            assert box["height"] > 40
            assert all(min(margins) >= 0 for margins in box["texts"])
            for other in boxes[:number]:
                assert (
                    abs(box["x"] - other["x"]) >= box["width"] + 8
                    or abs(box["y"] - other["y"]) >= box["height"] + 8
                )


# Points of each edge that lie inside of a box. The ends touch boxes, hence the margin.
CROSSINGS = """
[...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('rect.box')].map(box => box.getBBox());
  return [...svg.querySelectorAll('path.edge')].flatMap((edge, number) => {
    const length = edge.getTotalLength();
    const points = [...Array(81).keys()].map(i => edge.getPointAtLength(length * i / 80));
    return points.filter(p => boxes.some(b => p.x > b.x + 1 && p.x < b.x + b.width - 1
      && p.y > b.y + 1 && p.y < b.y + b.height - 1)).map(p => [number, p.x, p.y]);
  });
})
"""
ENDS = """
[...document.querySelectorAll('svg')].map(svg => {
  const boxes = [...svg.querySelectorAll('rect.box')].map(box => box.getBBox());
  const at = p => boxes.findIndex(b => p.x >= b.x - 2 && p.x <= b.x + b.width + 2
    && p.y >= b.y - 2 && p.y <= b.y + b.height + 2);
  return [...svg.querySelectorAll('path.edge')].map(edge =>
    [at(edge.getPointAtLength(0)), at(edge.getPointAtLength(edge.getTotalLength()))]);
})
"""


def tangled(number: int = 24) -> Report:
    """Reads over all distances, in one lane and between lanes, over several rows."""
    parts = tuple(
        SegmentReport(
            "host" if index % 3 == 1 or index > 18 else "device",
            {"op": 1},
            reads=tuple({index // 2, max(index - 2, 0), index - 1}) if index else (),
        )
        for index in range(number)
    )
    lane = tuple(
        SegmentReport("device", {"op": 1}, reads=tuple(range(max(0, index - 4), index)))
        for index in range(9)
    )
    return Report(
        "tangled",
        (GraphReport("g", "forward", "cpu", parts), GraphReport("h", "forward", "cpu", lane)),
    )


@pytest.mark.parametrize("report", [reports.joined(), reports.alternating(), tangled()])
def test_arrows_lead_from_maker_to_reader_past_other_boxes(report: Report, load: Load) -> None:
    loaded = load(report)
    assert loaded.ask(CROSSINGS) == []
    for graph, ends in zip(report.graphs, loaded.ask(ENDS), strict=True):
        reads = Counter(
            (source, target)
            for target, part in enumerate(graph.segments)
            for source in part.reads
        )  # fmt: skip
        drawn = Counter(map(tuple, ends))
        # An arrow from another row begins in the open, where the other's number is written.
        across = [pair for pair in drawn.elements() if pair[0] == -1]
        assert all(drawn[pair] == 1 and pair in reads for pair in drawn if pair[0] != -1)
        left = reads - drawn
        assert Counter(target for _, target in across) == Counter(target for _, target in left)
    notes = loaded.ask("[...document.querySelectorAll('text.note')].map(note => note.textContent)")
    assert all(re.fullmatch(r"arguments|results|(from|to) [\d, +]+", n) for n in notes)


NOTES = """
[...document.querySelectorAll('svg')].map(svg => {
  const all = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text.note')].map(note => {
    const {left, right, top, bottom} = note.getBoundingClientRect();
    return [left - all.left, top - all.top, all.right - right, all.bottom - bottom,
            left, right, top, bottom, note.textContent];
  });
})
"""


@pytest.mark.parametrize(
    "report", [reports.happy(), reports.several(), reports.alternating(), tangled(), tangled(230)]
)
def test_notes_are_within_the_picture_and_apart(report: Report, load: Load) -> None:
    drawn = load(report).ask(NOTES)
    assert any(drawn)
    for notes in drawn:
        for index, (*margins, left, right, top, bottom, note) in enumerate(notes):
            assert min(margins) >= 0, note
            for *_, left2, right2, top2, bottom2, other in notes[:index]:
                apart = left >= right2 or left2 >= right or top >= bottom2 or top2 >= bottom
                assert apart, (note, other)


def test_an_arrow_to_another_row_names_both_ends(load: Load) -> None:
    loaded = load(reports.alternating())
    notes = loaded.ask("[...document.querySelectorAll('text.note')].map(note => note.textContent)")
    assert "to 10, 12" in notes
    assert "from 7, 9" in notes


def test_a_click_on_a_box_leads_to_its_row(load: Load) -> None:
    loaded = load(reports.alternating())
    x, y = loaded.ask(
        "(b => [b.x + b.width / 2, b.y + b.height / 2])"
        "(document.querySelectorAll('rect.box')[5].getBoundingClientRect())"
    )
    loaded.click(x, y)
    assert loaded.ask("location.hash") == "#g0s5"
    row = "document.querySelector('tr:target')"
    assert loaded.ask(f"{row}.querySelector('th').textContent") == "5"
    top, bottom = loaded.ask(f"(b => [b.top, b.bottom])({row}.getBoundingClientRect())")
    assert 0 <= top < bottom <= 1400
    fill = f"getComputedStyle({row}).backgroundColor"
    assert loaded.ask(fill) == "rgb(255, 243, 176)"


CONTRASTS = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d');
  const light = color => {
    canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => {
      v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = node => {
    const own = getComputedStyle(node).backgroundColor;
    return own !== 'rgba(0, 0, 0, 0)' ? own : behind(node.parentElement);
  };
  const ratio = (a, b) => { [a, b] = [light(a), light(b)].sort((p, q) => q - p);
    return (a + 0.05) / (b + 0.05) };
  const found = [];
  for (const node of document.querySelectorAll('main *')) {
    if (![...node.childNodes].some(c => c.nodeType === 3 && c.textContent.trim())) continue;
    const style = getComputedStyle(node);
    const box = node.closest('a.segment')?.querySelector('rect.box');
    if (node.closest('title')) continue;
    const svg = node.closest('svg');
    const band = svg?.querySelector('rect.band');
    const back = box ? getComputedStyle(box).fill
      : node.classList.contains('lane') ? getComputedStyle(band).fill : behind(node);
    found.push([ratio(svg ? style.fill : style.color, back), node.textContent.slice(0, 40)]);
  }
  return found;
})()
"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["joined", "several"])
def test_all_text_stands_out(name: str, dark: bool, load: Load) -> None:
    loaded = load(getattr(reports, name)(), dark=dark)
    paper = loaded.ask("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(17, 22, 29)" if dark else "rgb(255, 255, 255)")
    contrasts = loaded.ask(CONTRASTS)
    assert len(contrasts) > 40
    # Web Content Accessibility Guidelines 2.2, criterion 1.4.3.
    assert [found for found in contrasts if found[0] < 4.5] == []


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("width", [1240, 700, 400])
def test_only_pictures_and_tables_scroll_sideways(name: str, width: int, load: Load) -> None:
    loaded = load(getattr(reports, name)(), width=width)
    assert loaded.ask("document.documentElement.scrollWidth") <= width
