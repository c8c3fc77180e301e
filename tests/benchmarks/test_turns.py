"""One case in real worker processes; what is asked of them is noted on the way."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cases
from benchmarks.processes import Process
from benchmarks.results import Result
from benchmarks.turns import Settings, Turns

ADD = "add of two arrays of 64"
ROUNDS = 4
CASE = replace(
    cases.find(ADD), competitors=("eager", "inductor", "pjrt", "jax", "torch_xla", "runtime")
)
SETTINGS = Settings(rounds=ROUNDS, sample=1e-4, budget=2, without=frozenset({"inductor"}))
DOOMED = "runtime"


class Watched(Process):
    """A worker whose requests are noted; that of one competitor is killed in the second round."""

    asked: list[tuple[int, str, dict[str, Any], bool]] = []
    names: dict[int, str] = {}
    busy = 0

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        if do == "prepare":
            self.names[self.pid] = request["competitor"]
        name = self.names[self.pid]
        timed = sum(who == self.pid and what == "time" for who, what, *_ in self.asked)
        if name == DOOMED and timed == 5:
            os.kill(self.pid, signal.SIGKILL)
        Watched.busy += 1
        self.asked.append((self.pid, do, request, Watched.busy == 1))
        try:
            return super().ask(do, **request)
        finally:
            Watched.busy -= 1


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.turns.Process", Watched)
        disk = tmp_path_factory.mktemp("disk")
        yield Turns("dispatch", CASE, SETTINGS, disk).measure()


def rounds(result: Result) -> list[list[str]]:
    """Who was timed in each round, in their order."""
    everyone = [name for name in result.outcomes if result.outcomes[name].status == "measured"]
    # The last two requests of a round are the call that is not timed, and the timed ones.
    timed = [
        Watched.names[pid]
        for pid, do, request, _ in Watched.asked
        if do == "time" and Watched.names[pid] in everyone
    ][-2 * ROUNDS * len(everyone) :]
    size = 2 * len(everyone)
    return [timed[at : at + size : 2] for at in range(0, len(timed), size)]


def test_everyone_is_timed_once_a_round(result: Result) -> None:
    for name in ("eager", "pjrt"):
        outcome = result.outcomes[name]
        assert outcome.status == "measured", outcome.reason
        assert len(outcome.samples) == ROUNDS
        assert min(outcome.samples) > 1e-8
    for order in rounds(result):
        assert sorted(order) == ["eager", "pjrt"]


def test_the_order_changes(result: Result) -> None:
    assert len(set(map(tuple, rounds(result)))) > 1


def test_only_one_runs_at_a_time_when_times_count(result: Result) -> None:
    last_prepared = max(index for index, (_, do, *_) in enumerate(Watched.asked) if do == "prepare")
    turns = [item for item in Watched.asked[last_prepared + 1 :] if item[1] == "time"]
    # While others compile still, a call that is not timed ends the preparation of each.
    assert all(alone for *_, alone in turns[len(result.outcomes) :])


def test_one_that_dies_is_reported_and_the_others_go_on(result: Result) -> None:
    outcome = result.outcomes[DOOMED]
    assert outcome.status == "failed"
    assert outcome.reason == "the process ended by SIGKILL"
    assert outcome.median is None


def test_one_that_is_not_there_is_reported(result: Result) -> None:
    for name in ("jax", "torch_xla"):
        outcome = result.outcomes[name]
        assert outcome.status == "absent"
        assert outcome.reason == f"no interpreter was named by --{name.replace('_', '-')}"


def test_what_is_not_wanted_is_neither_measured_nor_asked_for(result: Result) -> None:
    assert "inductor" not in result.outcomes
    assert [asked.competitor for asked in result.asked] == ["runtime", "executable"]
    verdict, _ = result.verdicts()
    assert verdict.met is None
    assert verdict.sides == "runtime failed, raw C not measured"


def test_an_interpreter_of_its_own(tmp_path: Path) -> None:
    """Where it cannot run the competitor, this is absent; the case has a result all the same."""
    only = replace(cases.find(ADD), competitors=("jax",), asked=())
    settings = replace(SETTINGS, interpreters={"jax": "/nowhere/python"})
    outcome = Turns("dispatch", only, settings, tmp_path).measure().outcomes["jax"]
    assert (outcome.status, outcome.samples) == ("absent", ())
    assert "/nowhere/python" in outcome.reason


def test_the_next_process_finds_what_the_one_before_has_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    class Starting(Process):
        def __init__(self, interpreter: str | None, environment: dict[str, str]) -> None:
            super().__init__(interpreter, environment)
            found.append(environment["PJRT_BRIDGE_CACHE"])

    monkeypatch.setattr("benchmarks.turns.Process", Starting)
    case = replace(cases.find("first call of gelu"), competitors=("eager warm", "eager"))
    settings = replace(SETTINGS, rounds=1)
    outcomes = Turns("start", case, settings, tmp_path).measure().outcomes
    assert [len(outcome.samples) for outcome in outcomes.values()] == [1, 1]
    assert len(found) == 2
    assert found[0] == found[1]
    # Nothing is left for later cases, whose starts are to be cold.
    assert list(tmp_path.iterdir()) == []


def test_memory_is_that_of_the_process(tmp_path: Path) -> None:
    case = replace(cases.find("memory of a sum of 1000 x 1000"), competitors=("eager",))
    settings = replace(SETTINGS, rounds=1)
    (sample,) = Turns("memory", case, settings, tmp_path).measure().outcomes["eager"].samples
    # PyTorch and four megabytes; not a machine's worth.
    assert 50e6 < sample < 2e9


def test_a_failure_that_nobody_expects_is_not_swallowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Process):
        def ask(self, do: str, **request: Any) -> dict[str, Any]:
            raise ZeroDivisionError

    monkeypatch.setattr("benchmarks.turns.Process", Broken)
    only = replace(cases.find(ADD), competitors=("eager",), asked=())
    with pytest.raises(ZeroDivisionError):
        Turns("dispatch", only, SETTINGS, tmp_path).measure()
