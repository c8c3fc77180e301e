"""Planted faults as data: the files in `faults`, read and checked.

Each file has tables `[[fault]]` with these fields: `name`; `path` of a file of the product, from
the root on; `before` and `after`, texts of it; optionally `tests`, a list of files and folders of
tests. By default these are the tests of the changed module: of `pjrt_bridge/a/b.py` the file
`tests/a/test_b.py`, or the folder `tests/a` where there is no such file.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "faults"


@dataclass(frozen=True)
class Fault:
    """One change that makes the product wrong.

    Attributes:
        name: of the fault.
        group: the file that it is listed in, such as `lowerings`.
        path: the file that is changed, from the root on.
        before: its text, which occurs exactly once.
        after: what stands there instead.
        tests: files and folders of the tests that are to find it, from the root on.
    """

    name: str
    group: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]

    def objection(self, root: Path = ROOT) -> str | None:
        """Why the fault cannot be planted into a tree any more; None where it can."""
        file = root / self.path
        if not file.is_file():
            return f"{self.path} is not there"
        count = file.read_text().count(self.before)
        if count != 1:
            return f"{self.path}: found the text {count} times, expected it once"
        if self.before == self.after:
            return "it changes nothing"
        missing = [test for test in self.tests if not (root / test).exists()]
        if missing or not self.tests:
            return f"there are no tests {', '.join(missing) or self.path}"
        return None

    def planted(self, text: str) -> str:
        """The text of the file with the fault."""
        return text.replace(self.before, self.after)


def load() -> list[Fault]:
    """All faults, by group.

    Raises:
        KeyError: a field is missing.
        ValueError: a file is no TOML, or two faults have one name.
    """
    found = [
        Fault(
            name=entry["name"],
            group=file.stem,
            path=entry["path"],
            before=entry["before"],
            after=entry["after"],
            tests=tuple(entry.get("tests") or mirror(entry["path"])),
        )
        for file in sorted(FOLDER.glob("*.toml"))
        for entry in tomllib.loads(file.read_text())["fault"]
    ]
    names = [fault.name for fault in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"{FOLDER}: several faults are named {', '.join(sorted(twice))}")
    return found


def mirror(path: str, root: Path = ROOT) -> list[str]:
    """The tests of a module of the bridge: their file, or their folder where there is none."""
    package, *folders, name = Path(path).parts
    if package != "pjrt_bridge":
        return []
    folder = Path("tests", *folders)
    file = folder / f"test_{Path(name).stem}.py"
    return [str(file if (root / file).is_file() else folder)]
