"""Tables of a run on a GPU: lines for the terminal, and the section of docs/performance.md."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.gpu.results import Measured, Report, Result
from benchmarks.gpu.works import OURS, SIDES
from benchmarks.results import shown

_WRONG = {True: "WRONG", False: "more than is allowed"}
_TITLE = "## On a GPU"
_NOTHING = f"{_TITLE}\n\nNothing was measured.\n"

_HOW = (
    "The sides take turns, each in a process of its own; a number is the median over the rounds, "
    "and the device is waited for after many calls. Beside the time stands which share of the peak "
    "that is: of a product of large matrices in PyTorch in the same form, in decoding of the "
    "bandwidth of a copy. "
)

_BASES = ("jax", "inductor", "eager")
"""Beside whom the bridge is shown."""


def lines(result: Result, peaks: Mapping[str, float]) -> str:
    """A work for the terminal."""
    found = [result.work.name + (f" ({result.reason})" if result.reason else "")]
    for name, side in result.sides.items():
        share = result.share(name, peaks)
        parts = [
            _time(side.median),
            _told("tokens/s", _tokens(result, side)),
            _told("each waited for", _time(_middle(side.waited))),
            _told("of the peak", "" if share is None else f"{100 * share:.0f} %"),
            _told("first call", _time(side.first)),
            _told("from the cache", _time(side.again)),
            _told("relative error", "" if side.error is None else f"{side.error:.1e}"),
            _told("used", _gigabytes(side.memory.get("used"))),
            _WRONG[name in OURS] if side.wrong else "",
            f"{side.status}: {side.reason}" if side.status != "measured" else "",
        ]
        found.append(f"  {name:16} " + ", ".join(part for part in parts if part))
    return "\n".join(found)


def _starts(side: Measured) -> str:
    return " / ".join(filter(None, map(_time, (side.first, side.again))))


def _told(what: str, value: str) -> str:
    return f"{value} {what}" if value else ""


def _tokens(result: Result, side: Measured) -> str:
    """Of all texts together; of decoding alone."""
    if result.work.task != "decoding" or side.median is None:
        return ""
    return f"{result.work.batch / side.median:.0f}"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else shown(seconds, "s")


def _middle(samples: Sequence[float]) -> float | None:
    return Measured(samples=list(samples)).median


def _gigabytes(bytes: int | None) -> str:
    return "" if bytes is None else f"{bytes / 1e9:.2f} GB"


def section(report: Report) -> str:
    """The section, in Markdown."""
    timed = [item for item in report.results if not item.work.start]
    starts = [item for item in report.results if item.work.start]

    def there(name: str) -> bool:
        return any(name in result.sides for result in report.results)

    parts = [
        _TITLE,
        "Made by `python -m benchmarks.gpu --document docs/performance.md`, on",
        _rows(["", ""], (row for row in report.machine.items() if row[1] != "not installed")),
        textwrap.fill(_HOW + _peaks(report.peaks), 120),
        "\n".join(f"- **{name}**: {about}." for name, about in SIDES.items() if there(name)),
        _times([item for item in timed if item.work.task == "dispatch"], report.peaks),
        _times([item for item in timed if item.work.task != "dispatch"], report.peaks),
        "### Errors",
        "Norm of the difference to results in full precision on the host, by the norm of these.",
        _table(timed, lambda side: "" if side.error is None else f"{side.error:.1e}"),
    ]
    if starts:
        parts += [
            "### First call and memory",
            "A new process with empty caches / the next one, which finds them.",
            _table(starts, _starts),
            "Bytes of the device in use at the peak:",
            _table(starts, lambda side: _gigabytes(side.memory.get("used"))),
        ]
    parts.append(_missing(report))
    return "\n\n".join(part for part in parts if part) + "\n"


def section_of(page: str) -> str:
    """The section that a page has; one that says so where it has none."""
    found = _split(page)
    return _NOTHING if found is None else found[1]


def with_section(page: str, made: str) -> str:
    """A page with another section.

    Raises:
        ValueError: it has none.
    """
    found = _split(page)
    if found is None:
        raise ValueError(f"found no line {_TITLE!r}, expected a page like docs/performance.md")
    before, _, after = found
    return before + made + after


def _split(page: str) -> tuple[str, str, str] | None:
    """What is before the section, the section, and what comes behind it."""
    begin = page.find(f"\n{_TITLE}\n") + 1
    if not begin:
        return None
    end = page.find("\n## ", begin)
    end = len(page) if end < 0 else end
    return page[:begin], page[begin:end], page[end:]


def _peaks(peaks: Mapping[str, float]) -> str:
    found = [
        f"{form}: {value / 1e12:.3g} {'TB/s' if form == 'copy' else 'TFLOP/s'}"
        for form, value in peaks.items()
        if not isinstance(value, str)
    ]
    return f"Peaks: {', '.join(found)}." if found else ""


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _names(results: Sequence[Result]) -> list[str]:
    return [
        name
        for name in SIDES
        if any(name in item.sides and item.sides[name].status == "measured" for item in results)
    ]


def _times(results: Sequence[Result], peaks: Mapping[str, float]) -> str:
    if not results:
        return ""
    names = _names(results)
    rows = []
    for result in results:
        row = [result.work.name]
        for name in names:
            side = result.sides.get(name, Measured())
            share = None if name not in result.sides else result.share(name, peaks)
            tokens = _told("tokens/s", _tokens(result, side))
            percent = "" if share is None else f"{100 * share:.0f} %"
            cell = ", ".join(part for part in (_time(side.median), tokens, percent) if part)
            waited = _time(_middle(side.waited))
            row.append(cell + (f" ({waited} with waiting)" if waited else ""))
        rows.append(row + [_ratio(result, base) for base in _BASES if base in names])
    header = ["work", *names, *(f"pjrt / {base}" for base in _BASES if base in names)]
    return _rows(header, rows)


def _ratio(result: Result, base: str) -> str:
    ours, other = (result.sides.get(name, Measured()).median for name in ("pjrt", base))
    return f"{ours / other:.2f}x" if ours and other else ""


def _table(results: Sequence[Result], cell: object) -> str:
    assert callable(cell)
    names = _names(results)
    return _rows(
        ["work", *names],
        [
            [item.work.name, *(cell(item.sides.get(name, Measured())) for name in names)]
            for item in results
        ],
    )


def _missing(report: Report) -> str:
    found = [
        f"- {name}, {side.status} in {result.work.name}: {' '.join(side.reason.split())}"
        for result in report.results
        for name, side in result.sides.items()
        if side.status != "measured"
    ]
    found += [f"- no time for {name}" for name in report.left_out]
    return "Without a number:\n\n" + "\n".join(found) if found else ""
