"""Results of checks as data: statuses, the report of a run as JSON, and what differs between two.

The file format is stated in docs/conformance.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pjrt_bridge import bounded_files
from pjrt_bridge.errors import OptionError

FORMAT = 1
_LARGEST = 1 << 28
"""Version of the file format."""


class Status(StrEnum):
    """How a check ended."""

    PASS = "pass"
    FAIL = "fail"
    CRASH = "crash"
    HANG = "hang"
    UNSUPPORTED = "unsupported"
    ABSENT = "absent device"
    NOT_RUN = "not run"

    @property
    def defect(self) -> bool:
        """Whether the plugin is at fault."""
        return self in (Status.FAIL, Status.CRASH, Status.HANG)


@dataclass(frozen=True)
class Result:
    """What became of a check.

    Attributes:
        name: of the check.
        group: of the check.
        status: how it ended.
        reason: why it is not a pass; empty for a pass.
        seconds: it took.
    """

    name: str
    group: str
    status: Status
    reason: str
    seconds: float


@dataclass
class Report:
    """A run of the suite.

    Attributes:
        plugin: what the plugin says about itself: name, library, versions, platform.
        results: of the checks, in the order in which they ran.
        seconds: the whole run took.
        versions: of the packages that checked it.
    """

    plugin: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> dict[Status, int]:
        """Number of results of each status that occurs."""
        found = Counter(result.status for result in self.results)
        return {status: found[status] for status in Status if found[status]}

    @property
    def passed(self) -> bool:
        """Whether no check found a defect."""
        return not any(result.status.defect for result in self.results)

    def to_json(self) -> str:
        """The report as text for `from_json`."""
        data = {
            "format": FORMAT,
            "versions": self.versions,
            "plugin": self.plugin,
            "counts": {status.value: count for status, count in self.counts.items()},
            "seconds": round(self.seconds, 3),
            "checks": [asdict(result) for result in self.results],
        }
        return json.dumps(data, indent=1) + "\n"

    @staticmethod
    def from_json(text: str, *, where: str) -> Report:
        """The report that `to_json` wrote.

        Raises:
            OptionError: another text; `where` names the file.
        """
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']!r}, expected {FORMAT}")
            results = [
                Result(**{**entry, "status": Status(entry["status"])}) for entry in data["checks"]
            ]
            return Report(
                dict(data["plugin"]), results, float(data["seconds"]), dict(data["versions"])
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OptionError(f"{where}: no report of conformance checks: {error!r}") from error

    @staticmethod
    def read(path: Path) -> Report:
        """The report in a file.

        Raises:
            OptionError: the file cannot be read, or holds something else.
        """
        try:
            text = bounded_files.read(path, _LARGEST).decode()
        except (OSError, ValueError) as error:
            raise OptionError(f"{path}: cannot be read: {bounded_files.reason(error)}") from error
        return Report.from_json(text, where=str(path))


@dataclass(frozen=True)
class Difference:
    """A check that ended in another way in a second run.

    Attributes:
        name: of the check.
        kind: "worse", "better", "changed" (neither), "new" or "gone".
        before: status and reason in the first run; None where it was not there.
        after: the same in the second run.
    """

    name: str
    kind: str
    before: Result | None
    after: Result | None


# A lost feature is worse than a pass; whether a device is there says nothing about the plugin.
_RANK: Mapping[Status, int] = {
    Status.PASS: 0,
    Status.UNSUPPORTED: 1,
    Status.FAIL: 2,
    Status.HANG: 3,
    Status.CRASH: 3,
}


def compare(before: Report, after: Report) -> list[Difference]:
    """What ended in another way, the worst first; reasons alone make no difference."""
    old = {result.name: result for result in before.results}
    new = {result.name: result for result in after.results}
    found = []
    for name in dict.fromkeys([*old, *new]):
        first, second = old.get(name), new.get(name)
        if first is None or second is None or first.status != second.status:
            found.append(Difference(name, _kind(first, second), first, second))
    return sorted(found, key=lambda one: KINDS.index(one.kind))


KINDS = ("worse", "new", "gone", "changed", "better")
"""Kinds of differences, in the order in which they are listed."""


def _kind(first: Result | None, second: Result | None) -> str:
    if first is None:
        return "new"
    if second is None:
        return "gone"
    ranks = _RANK.get(first.status), _RANK.get(second.status)
    if ranks[0] is None or ranks[1] is None:
        defects = first.status.defect, second.status.defect
        return {(False, True): "worse", (True, False): "changed"}.get(defects, "changed")
    if ranks[0] == ranks[1]:
        return "changed"
    return "worse" if ranks[1] > ranks[0] else "better"
