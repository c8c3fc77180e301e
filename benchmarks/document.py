"""A report as `docs/performance.md`: the tables of a run, within text that is written by hand."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.competitors import COMPETITORS
from benchmarks.gpu.page import section_of
from benchmarks.results import Outcome, Report, Result, Verdict, shown

TEMPLATE = Path(__file__).parent / "performance.md.in"
_MARKS = {True: "yes", False: "**no**", None: "not known"}
_CALL = "a call"
_TITLES = {"tensorflow": "TensorFlow"}
_COMPARED = {"pjrt": ("eager", "inductor"), "tf_interop": ("tf.function", "jit_compile")}
"""The bridge in a framework, and those beside whom it is shown."""


def write(report: Report, path: Path, picture: Path | None) -> None:
    """Write the page.

    Args:
        report: its numbers.
        path: of the page.
        picture: the report's, in the page's folder; None leaves it out.
    """
    text = string.Template(TEMPLATE.read_text()).substitute(
        machine=_rows(["", ""], ([name, value] for name, value in report.machine.items())),
        minutes=f"{report.seconds / 60:.0f}",
        asked=_asked(report.verdicts()),
        means=_means(report),
        picture="" if picture is None else f"![Times of all cases]({picture.name})",
        competitors="\n".join(f"- **{name}**: {it.about}" for name, it in COMPETITORS.items()),
        tables="\n\n".join(_family(*item) for item in report.families().items()),
        missing=_missing(report),
        # Measured elsewhere, by `python -m benchmarks.gpu`.
        gpu=section_of(path.read_text() if path.exists() else ""),
    )
    path.write_text(text)


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _asked(verdicts: Iterable[Verdict]) -> str:
    return _rows(
        ["what", "asked, at most", "found", "reached", "made of"],
        (
            [
                item.what,
                f"{item.asked:g} {item.unit}",
                "not known" if item.found is None else f"{item.found:.2f} {item.unit}",
                _MARKS[item.met],
                item.sides,
            ]
            for item in verdicts
        ),
    )


def _means(report: Report) -> str:
    means = report.means()
    if not means:
        return "No case of this run measures calls of both."
    return _rows(
        ["family", "cases", "geometric mean"],
        ([family, str(count), f"{mean:.2f}"] for family, (mean, count) in means.items()),
    )


def _family(family: str, results: Sequence[Result]) -> str:
    # One that is nowhere there is named below, not in a column of its own.
    names = [
        name
        for name in dict.fromkeys(name for result in results for name in result.outcomes)
        if any(result.median(name) is not None for result in results)
    ]
    ours = next((name for name in _COMPARED if name in names), "pjrt")
    compared = [name for name in _COMPARED[ours] if name in names]
    better = _better(ours, compared) if ours in names and compared else ""
    ratios = {result.case: result.memory(ours, "eager") for result in results}
    weighed = any(ratio is not None for ratio in ratios.values())
    header = [
        "case",
        *names,
        *([better] if better else []),
        *(["memory / eager"] if weighed else []),
    ]
    rows = []
    for result in results:
        row = [result.case, *(_cell(result.outcomes.get(name), result.unit) for name in names)]
        if better:
            there = [name for name in compared if name in result.outcomes]
            ratio = result.ratio(ours, there) if there else None
            row.append(_times(ratio))
        if weighed:
            row.append(_times(ratios[result.case]))
        rows.append(row)
    title = _TITLES.get(family, family.capitalize())
    return f"### {title}\n\n{_rows(header, rows)}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def _better(ours: str, compared: Sequence[str]) -> str:
    if len(compared) == 1:
        return f"{ours} / {compared[0]}"
    return f"{ours} / better of {' and '.join(compared)}"


def _cell(outcome: Outcome | None, unit: str) -> str:
    if outcome is None:
        return ""
    return outcome.status if outcome.median is None else shown(outcome.median, unit)


def _missing(report: Report) -> str:
    """Everyone without a number, and why: one line a reason."""
    cases: dict[tuple[str, str, str], list[str]] = {}
    for result in report.results:
        for name, outcome in result.outcomes.items():
            if outcome.status != "measured":
                cases.setdefault((name, outcome.status, outcome.reason), []).append(result.case)
    lines = [
        f"- {name}, {status} in {_listed(found)}: {reason or 'no reason was given'}."
        for (name, status, reason), found in cases.items()
    ]
    lines += [f"- figures of {family}: {reason}" for family, reason in report.failures.items()]
    return "\n".join(lines) or "All competitors gave a number in every case."


def _listed(cases: Sequence[str]) -> str:
    return f"{len(cases)} cases" if len(cases) > 2 else " and ".join(cases)
