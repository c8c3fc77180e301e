"""What a run found, as JSON, and counts of features as tables."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.differential.generating import features as productions
from tests.differential.modes import NAMES
from tests.differential.runner import RanProgram


@dataclass
class Report:
    """Sums up a run.

    Attributes:
        seed: of it.
        programs: that ran.
        failures: as they are written.
        classes: failures by severity and kind.
    """

    seed: int
    started: float = field(default_factory=time.time)
    programs: int = 0
    runs: int = 0
    statements: int = 0
    invalid: list[str] = field(default_factory=list)
    raised: int = 0
    device_programs: int = 0
    rounding: int = 0
    torches: Counter[str] = field(default_factory=Counter)
    torches_shown: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, ran: RanProgram) -> None:
        """Count a program."""
        answer = ran.answer
        self.programs += 1
        if answer.invalid:
            self.invalid.append(f"{ran.index}: {answer.invalid}")
            return
        self.runs += len(answer.modes)
        self.statements += answer.statements
        self.raised += answer.raised
        self.device_programs += answer.programs
        self.rounding += answer.rounding
        self.torches.update({": ".join(text.split(": ")[:2]) for text in answer.torches})
        self.torches_shown += [f"{ran.index}: {text}" for text in answer.torches]
        self.refused.update(f"{mode}: {reason}" for mode, reason in answer.refused.items())
        self.modes.update(answer.modes)
        self.seconds.update(answer.seconds)
        marks = sorted({*answer.features, *(f"mode.{name}" for name in answer.modes)})
        self.features.update(marks)
        self.pairs.update(itertools.combinations(marks, 2))
        for failure, test in itertools.zip_longest(answer.failures, ran.tests, fillvalue=""):
            self.classes[f"{failure.severity}: {failure.kind}"] += 1  # type: ignore[union-attr]
            self.failures.append(
                {
                    "index": ran.index,
                    "mode": failure.mode_name,  # type: ignore[union-attr]
                    "severity": failure.severity,  # type: ignore[union-attr]
                    "kind": failure.kind,  # type: ignore[union-attr]
                    "text": failure.text,  # type: ignore[union-attr]
                    "others": failure.others,  # type: ignore[union-attr]
                    "test": test,
                }
            )

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.time() - self.started

    def missing(self) -> list[str]:
        """Pairs of productions and modes that never met."""
        every = sorted([*productions(), *(f"mode.{name}" for name in NAMES)])
        return [
            f"{one} x {other}"
            for one, other in itertools.combinations(every, 2)
            if not self.pairs[one, other]
        ]

    def summary(self) -> str:
        """Some lines."""
        elapsed = max(self.elapsed, 1e-9)
        lines = [
            f"seed {self.seed}: {self.programs} programs, {self.statements} statements, "
            f"{self.runs} compiled runs, {self.device_programs} device programs in {elapsed:.0f} s "
            f"({self.programs / elapsed:.2f} programs and {self.runs / elapsed:.2f} runs a second)",
            f"failures: {_counts(self.classes) or 'none'}",
            f"torch's own: {_counts(self.torches) or 'none'}",
            f"eager raised in {self.raised}, invalid {len(self.invalid)}, "
            f"within rounding {self.rounding}",
            f"refused: {_counts(self.refused, 6) or 'none'}",
            f"modes: {_counts(self.modes)}",
            f"seconds: {', '.join(f'{k} {v:.0f}' for k, v in self.seconds.most_common())}",
            f"pairs of productions and modes that never met: {len(self.missing())}",
        ]
        return "\n".join(lines)

    def table(self) -> str:
        """How often families met, and how often each feature came."""
        families = sorted({name.split(".")[0] for name in self.features})
        met: Counter[tuple[str, str]] = Counter()
        for (one, other), count in self.pairs.items():
            pair = tuple(sorted((one.split(".")[0], other.split(".")[0])))
            met[pair] += count  # type: ignore[index]
        head = " " * 12 + "".join(f"{name[:8]:>9}" for name in families)
        rows = [head]
        for one in families:
            cells = "".join(f"{met[min(one, other), max(one, other)]:>9}" for other in families)
            rows.append(f"{one:<12}{cells}")
        rows.append("")
        never = [name for name in productions() if not self.features[name]]
        rows += [f"{name:<36}{count:>7}" for name, count in sorted(self.features.items())]
        rows += [f"{name:<36}      0" for name in never]
        return "\n".join(rows)

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        path.write_text(
            json.dumps(
                {
                    "seed": self.seed,
                    "programs": self.programs,
                    "runs": self.runs,
                    "statements": self.statements,
                    "device_programs": self.device_programs,
                    "seconds": self.elapsed,
                    "seconds_by_mode": dict(self.seconds),
                    "classes": dict(self.classes),
                    "torch": dict(self.torches),
                    "torch_differences": self.torches_shown,
                    "refused": dict(self.refused),
                    "raised": self.raised,
                    "rounding": self.rounding,
                    "invalid": self.invalid,
                    "modes": dict(self.modes),
                    "features": dict(sorted(self.features.items())),
                    "pairs": {
                        f"{one} x {other}": count
                        for (one, other), count in sorted(self.pairs.items())
                    },
                    "never": self.missing(),
                    "failures": self.failures,
                },
                indent=1,
            )
        )


def _counts(found: Counter[str], most: int = 12) -> str:
    return ", ".join(f"{name} {count}" for name, count in found.most_common(most))
