"""What was measured on a GPU, and the file that keeps it."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.works import OURS, Work


@dataclass
class Measured:
    """What became of a side in a work.

    Attributes:
        samples: seconds of a call, of each round; the device is not waited for between calls.
        waited: the same where each call waits; of dispatch alone.
        status: "measured", "absent" or "failed".
        reason: why there is no number.
        first: seconds of the first call, which compiles.
        again: seconds of the first call of a process that finds what another one has compiled.
        error: of the results, relative to those in full precision.
        wrong: the error is more than is allowed.
        memory: of the device, at the peak: bytes "used", and "taken" by the allocator.
    """

    samples: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    status: str = "measured"
    reason: str = ""
    first: float | None = None
    again: float | None = None
    error: float | None = None
    wrong: bool = False
    memory: dict[str, int] = field(default_factory=dict)

    @property
    def median(self) -> float | None:
        """Of the samples."""
        return statistics.median(self.samples) if self.samples else None


@dataclass(frozen=True)
class Result:
    """A work that was measured.

    Attributes:
        work: which.
        sides: by name.
        counts: "flops" and "weights" (bytes in float32) of a call.
        reason: why results were compared with nothing.
    """

    work: Work
    sides: Mapping[str, Measured]
    counts: Mapping[str, int]
    reason: str = ""

    def share(self, name: str, peaks: Mapping[str, float]) -> float | None:
        """How much of what the device can do a side gets: arithmetic, or in decoding reading."""
        median = self.sides[name].median
        if not median or not self.counts or self.work.task == "dispatch":
            return None
        if self.work.task == "decoding":
            bytes = self.counts["weights"] // (2 if self.work.form == "bf16" else 1)
            return bytes / median / peaks["copy"] if "copy" in peaks else None
        peak = peaks.get(self.work.form)
        return None if peak is None else self.counts["flops"] / median / peak


@dataclass
class Report:
    """All that a run has measured so far.

    Attributes:
        machine: by what it is called.
        peaks: of the device, see `benchmarks.gpu.reference.peaks`.
        beside: memory of both allocators in one process, or why it is not known.
        results: of works.
        left_out: names of works for which there was no time.
    """

    machine: Mapping[str, str]
    peaks: Mapping[str, float] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    left_out: Sequence[str] = ()

    def wrong(self) -> list[str]:
        """Sides of the bridge whose results are wrong, with their works."""
        return [
            f"{name} in {result.work.name}: relative error {side.error:.1e}"
            for result in self.results
            for name, side in result.sides.items()
            if side.wrong and name in OURS
        ]

    def write(self, path: Path) -> None:
        """As JSON, with medians and shares worked out for other readers."""
        results = []
        for result in self.results:
            found = dataclasses.asdict(result)
            found["name"] = result.work.name
            for name, side in result.sides.items():
                found["sides"][name]["median"] = side.median
                found["sides"][name]["share"] = result.share(name, self.peaks)
            results.append(found)
        write_json(path, {**vars(self), "results": results})

    @staticmethod
    def read(path: Path) -> Report:
        """What `write` wrote.

        Raises:
            ValueError: the file is something else.
        """
        found = read_json(path)
        try:
            results = [_result(item) for item in found.pop("results")]
            return Report(**found, results=results)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: no report of benchmarks.gpu: {error!r}") from error


def _result(found: dict[str, Any]) -> Result:
    work = {**found["work"], "sides": tuple(found["work"]["sides"])}
    names = [item.name for item in dataclasses.fields(Measured)]
    sides = {
        name: Measured(**{key: side[key] for key in names}) for name, side in found["sides"].items()
    }
    return Result(Work(**work), sides, found["counts"], found["reason"])


def write_json(path: Path, found: Any) -> None:
    """Write a file of JSON, whole or not at all."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(found, indent=1))
    beside.replace(path)


def read_json(path: Path) -> Any:
    """Read a file of JSON."""
    return json.loads(path.read_text())
