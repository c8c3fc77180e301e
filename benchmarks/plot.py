"""A report as a picture: in each case everyone beside the better of eager and Inductor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.results import Report, Result

BASE = ("eager", "inductor")
_MARKS = {
    "eager": ("|", "tab:gray"),
    "inductor": ("|", "tab:blue"),
    "jax": ("x", "tab:purple"),
    "torch_xla": ("+", "tab:brown"),
    "pjrt": ("o", "tab:green"),
}


def check(path: Path) -> None:
    """Check that a picture could be written here, before the minutes that go into it.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: it has no such format.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in formats:
        raise ValueError(f"found {path.name}, expected a file such as plot.svg or plot.png")


def draw(report: Report, path: Path) -> None:
    """Write the picture, in the format that the path's suffix names.

    Args:
        report: of it the cases that measure calls, and have all that they are compared with.
        path: of a file that matplotlib knows how to write, `.svg` or `.png` say.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is no such case, or no such format.
    """
    import matplotlib
    from matplotlib.figure import Figure

    results = [item for item in report.results if item.measure == "a call" and _base(item)]
    if not results:
        raise ValueError("no case of this run has times of eager or Inductor to draw others beside")
    # The same report gives the same file, with texts as texts.
    with matplotlib.rc_context({"svg.hashsalt": "benchmarks", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 1.6 + 0.22 * len(results)), layout="constrained")
        axes = figure.add_subplot()
        _draw(axes, results)
        figure.legend(
            *axes.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False
        )
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, metadata=metadata)


def _draw(axes: Any, results: list[Result]) -> None:
    rows = range(len(results))
    for name, (mark, color) in _MARKS.items():
        found = [(row, _ratio(result, name)) for row, result in zip(rows, results, strict=True)]
        points = [(row, ratio) for row, ratio in found if ratio is not None]
        if points:
            axes.scatter(
                [ratio for _, ratio in points],
                [row for row, _ in points],
                marker=mark,
                color=color,
                label=name,
                zorder=3 if name == "pjrt" else 2,
            )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(list(rows), [result.case for result in results], fontsize=8)
    axes.invert_yaxis()
    axes.grid(alpha=0.3)
    axes.set_xlabel("median time in units of the better of eager and Inductor; left is faster")


def _base(result: Result) -> list[str]:
    return [name for name in BASE if result.median(name) is not None]


def _ratio(result: Result, name: str) -> float | None:
    return result.ratio(name, _base(result))
