"""What was measured, what was asked, and both as JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.case import Asked, Suite
from benchmarks.figure import Figure


@dataclass(frozen=True)
class Outcome:
    """What became of a competitor in a case.

    Attributes:
        samples: seconds or bytes of each round; none where there is no number.
        status: "measured", "absent" or "failed".
        reason: why there is no number.
        peak: bytes that were resident in its process at the peak of a call; None: not measured.
    """

    samples: tuple[float, ...] = ()
    status: str = "measured"
    reason: str = ""
    peak: int | None = None

    @property
    def median(self) -> float | None:
        """Of the samples."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def best(self) -> float | None:
        """The least of the samples."""
        return min(self.samples, default=None)


@dataclass(frozen=True)
class Verdict:
    """A number that was asked for, beside what was found.

    Attributes:
        what: it is about.
        asked: at most this.
        found: the number; None where a side of it is missing.
        unit: of both; "x" is a ratio.
        sides: what the number was made of, or what is missing.
    """

    what: str
    asked: float
    found: float | None
    unit: str
    sides: str

    @property
    def met(self) -> bool | None:
        """Whether it is what was asked; None where it is not known."""
        return None if self.found is None else self.found <= self.asked


@dataclass(frozen=True)
class Result:
    """A case that was measured.

    Attributes:
        case: its name.
        family: it belongs to.
        measure: "a call", "the first call" or "memory".
        unit: of all samples, "s" or "B".
        outcomes: by competitor.
        asked: of the case.
    """

    case: str
    family: str
    measure: str
    unit: str
    outcomes: Mapping[str, Outcome]
    asked: tuple[Asked, ...] = ()

    def ratio(self, competitor: str, against: Iterable[str]) -> float | None:
        """Median of a competitor in units of the least median of others; None if one is missing."""
        medians = [self.median(name) for name in (competitor, *against)]
        if None in medians:
            return None
        own, *others = [median for median in medians if median is not None]
        return own / min(others)

    def memory(self, competitor: str, against: str) -> float | None:
        """Bytes at the peak of a competitor's call in units of another's."""
        peaks = [
            self.outcomes[name].peak for name in (competitor, against) if name in self.outcomes
        ]
        if len(peaks) < 2 or peaks[0] is None or not peaks[1]:
            return None
        return peaks[0] / peaks[1]

    def median(self, competitor: str) -> float | None:
        """Of a competitor's samples, if there are any."""
        outcome = self.outcomes.get(competitor)
        return None if outcome is None else outcome.median

    def verdicts(self) -> list[Verdict]:
        """What was asked of the case, beside what was found."""
        return [self._verdict(asked) for asked in self.asked]

    def _verdict(self, asked: Asked) -> Verdict:
        found = self.ratio(asked.competitor, asked.against)
        sides = []
        for name in (asked.competitor, *asked.against):
            outcome = self.outcomes.get(name)
            if outcome is None or outcome.median is None:
                sides.append(f"{name} {'not measured' if outcome is None else outcome.status}")
            else:
                sides.append(f"{name} {shown(outcome.median, self.unit)}")
        return Verdict(
            f"{self.case}: {described(asked)}", asked.limit, found, "x", ", ".join(sides)
        )


@dataclass(frozen=True)
class Report:
    """One run.

    Attributes:
        machine: what it ran on, by what it is called.
        results: of the cases.
        figures: single numbers that were asked for.
        failures: families of figures that did not come to their end, and why.
        suites: what is asked of several families together.
        seconds: that the run took.
    """

    machine: Mapping[str, str]
    results: Sequence[Result] = ()
    figures: Sequence[Figure] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    suites: Sequence[Suite] = ()
    seconds: float = 0.0

    def families(self) -> dict[str, list[Result]]:
        """Results by family, in the order of the run."""
        found: dict[str, list[Result]] = {}
        for result in self.results:
            found.setdefault(result.family, []).append(result)
        return found

    def means(self) -> dict[str, tuple[float, int]]:
        """Geometric means of families and of suites, each with its number of cases."""
        means = {}
        for suite in self.suites:
            families = [name for name in suite.families if name in self.families()]
            for name in families if len(suite.families) > 1 else []:
                means.setdefault(name, _mean(self.families()[name], suite.asked))
            means[suite.name] = _mean(self._of(suite), suite.asked)
        return {name: mean for name, mean in means.items() if mean is not None}

    def _of(self, suite: Suite) -> list[Result]:
        return [result for result in self.results if result.family in suite.families]

    def verdicts(self) -> list[Verdict]:
        """Everything that was asked for, beside what was found."""
        verdicts = [verdict for result in self.results for verdict in result.verdicts()]
        for suite in self.suites:
            if self._of(suite):
                verdicts += self._together(suite)
        verdicts += [
            Verdict(figure.what, figure.asked, figure.found, figure.unit, figure.sides)
            for figure in self.figures
        ]
        return verdicts

    def _together(self, suite: Suite) -> Iterator[Verdict]:
        results, asked = self._of(suite), suite.asked
        mean, count = _mean(results, asked) or (None, 0)
        without = len(results) - count
        yield Verdict(
            f"geometric mean of {suite.name}: {described(asked)}",
            asked.limit,
            mean,
            "x",
            f"over {count} cases of {', '.join(suite.families)}"
            + (f"; {without} without a number" if without else ""),
        )
        if suite.slowest is not None and count:
            # Cases of two families may have one name.
            found = [
                (ratio, result.case)
                for result in results
                if (ratio := result.ratio(asked.competitor, asked.against)) is not None
            ]
            ratio, slowest = max(found)
            above = sum(one > suite.slowest for one, _ in found)
            yield Verdict(
                f"the slowest of {suite.name}: {described(asked)}",
                suite.slowest,
                ratio,
                "x",
                f"{slowest}; {above} of {count} cases are above",
            )

    def to_json(self) -> str:
        """Everything, with medians, ratios and verdicts worked out for other readers."""
        return json.dumps(
            {
                "machine": dict(self.machine),
                "seconds": self.seconds,
                "results": [result_as_dict(result) for result in self.results],
                "figures": [asdict(figure) for figure in self.figures],
                "failures": dict(self.failures),
                "suites": [asdict(suite) for suite in self.suites],
                "means": {
                    family: {"found": mean, "cases": count}
                    for family, (mean, count) in self.means().items()
                },
                "verdicts": [{**asdict(item), "met": item.met} for item in self.verdicts()],
            },
            indent=1,
        )

    @staticmethod
    def from_json(text: str) -> Report:
        """The report that `to_json` wrote.

        Raises:
            ValueError: the text is something else.
        """
        try:
            found = json.loads(text)
            return Report(
                found["machine"],
                tuple(map(read_result, found["results"])),
                tuple(Figure(**figure) for figure in found["figures"]),
                found["failures"],
                tuple(map(_read_suite, found["suites"])),
                found["seconds"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no report of the benchmarks: {error!r}") from error


def _mean(results: Sequence[Result], asked: Asked) -> tuple[float, int] | None:
    """Of the ratios that are known, and how many they are."""
    found = [result.ratio(asked.competitor, asked.against) for result in results]
    ratios = [ratio for ratio in found if ratio is not None]
    if not ratios:
        return None
    return math.exp(statistics.fmean(map(math.log, ratios))), len(ratios)


def result_as_dict(result: Result) -> dict[str, Any]:
    """The result of a case for JSON, with medians worked out for other readers."""
    return {
        **{name: getattr(result, name) for name in ("case", "family", "measure", "unit")},
        "asked": [asdict(asked) for asked in result.asked],
        "competitors": {
            name: {**asdict(outcome), "median": outcome.median, "best": outcome.best}
            for name, outcome in result.outcomes.items()
        },
    }


def read_result(found: dict[str, Any]) -> Result:
    """The result that `result_as_dict` made this of."""
    outcomes = {
        name: Outcome(tuple(item["samples"]), item["status"], item["reason"], item["peak"])
        for name, item in found["competitors"].items()
    }
    names = ("case", "family", "measure", "unit")
    asked = tuple(map(_read_asked, found["asked"]))
    return Result(**{name: found[name] for name in names}, outcomes=outcomes, asked=asked)


def _read_asked(found: dict[str, Any]) -> Asked:
    return Asked(found["competitor"], found["limit"], tuple(found["against"]))


def _read_suite(found: dict[str, Any]) -> Suite:
    return Suite(
        found["name"], tuple(found["families"]), _read_asked(found["asked"]), found["slowest"]
    )


def base_of(results: Iterable[Result]) -> str:
    """Beside whom the competitors of a family are shown."""
    names = {name for result in results for name in result.outcomes}
    return "tf.function" if "tf.function" in names else "eager"


def described(asked: Asked) -> str:
    """What is asked, without the number."""
    others = " and ".join(asked.against)
    better = "the better of " if len(asked.against) > 1 else ""
    return f"{asked.competitor} in units of {better}{others}"


def shown(value: float, unit: str) -> str:
    """Seconds or bytes, in the unit that suits them."""
    if unit == "B":
        return f"{value / 1e6:.0f} MB"
    for scale, name in ((1, "s"), (1e-3, "ms")):
        if value >= scale:
            return f"{value / scale:.2f} {name}"
    return f"{value * 1e6:.1f} us"
