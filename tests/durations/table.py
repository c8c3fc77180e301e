"""The table of durations: what folders and files of tests took."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Sum:
    """What some tests took together, in seconds.

    Attributes:
        own: processor seconds of their processes.
        children: processor seconds of processes that they have started.
        wall: by the clock, of all of them one after the other.
        tests: how many.
    """

    own: float = 0.0
    children: float = 0.0
    wall: float = 0.0
    tests: int = 0

    @property
    def processor(self) -> float:
        """All processor seconds."""
        return self.own + self.children


Line = tuple[str, float, float, float]


def read(folder: Path) -> list[Line]:
    """For each test its name, and seconds: own, children's, by the clock.

    Raises:
        ValueError: a file of another form.
    """
    found = []
    for path in sorted(folder.glob("*.tsv")):
        for line in path.read_text().splitlines():
            own, children, wall, name = line.split("\t", 3)
            found.append((name, float(own), float(children), float(wall)))
    return found


def sums(lines: Iterable[Line], key: Callable[[str], str]) -> dict[str, Sum]:
    """What tests took by a part of their names, the most processor seconds first."""
    found: dict[str, Sum] = {}
    for name, own, children, wall in lines:
        one = found.setdefault(key(name), Sum())
        one.own += own
        one.children += children
        one.wall += wall
        one.tests += 1
    return dict(sorted(found.items(), key=lambda item: -item[1].processor))


def file_of(name: str) -> str:
    """The file of a test."""
    return name.partition("::")[0]


def folder_of(name: str) -> str:
    """The folder of a test's file."""
    file = file_of(name)
    return file.rpartition("/")[0] or file


def dump(lines: Iterable[Line], head: str) -> str:
    """The text of a table of all, of folders, and of files.

    Args:
        lines: of tests.
        head: what stands above it.
    """
    lines = list(lines)
    parts = [head, _rows(sums(lines, lambda _: "all"))]
    parts += [_rows(sums(lines, key)) for key in (folder_of, file_of)]
    return "\n".join(parts)


def _rows(found: dict[str, Sum]) -> str:
    head = f"{'processor':>10} {'own':>9} {'children':>9} {'clock':>9} {'tests':>6}  where"
    rows = [
        f"{one.processor:10.1f} {one.own:9.1f} {one.children:9.1f} {one.wall:9.1f} "
        f"{one.tests:6}  {name}"
        for name, one in found.items()
    ]
    return "\n".join([head, *rows, ""])
