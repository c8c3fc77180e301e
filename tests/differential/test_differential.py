"""Random programs agree with eager mode, and what does not would be seen."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from pjrt_bridge.exported import loaded
from tests.differential.checking import Written, check, numbers
from tests.differential.comparing import differences
from tests.differential.faults import FAULTS, WANTED
from tests.differential.generating import generate
from tests.differential.ir import Code, Name, Program, Statement, element, index, shown
from tests.differential.judging import Judge
from tests.differential.modes import Mode
from tests.differential.observing import execute, observe
from tests.differential.planting import find
from tests.differential.printing import as_test
from tests.differential.report import Report
from tests.differential.runner import BLOCK, RanProgram, Runner, Settings, Worker
from tests.differential.shrinking import candidates, shrink

# -- slices of the fuzzer --------------------------------------------------------------------------


SEED = 18
"""Of what `make test` runs; other seeds are for the command line."""


SLICE = 4
"""Programs of a test; the slow tests run hundreds."""


def _run(seed: int, first: int, count: int) -> list[str]:
    settings = Settings(seed, shrinking=30)
    report = Report(seed)
    lines: list[str] = []
    for ran in Runner(settings).run(first, lambda number: number < count):
        report.add(ran)
        lines += _lines(ran)
    print(report.summary())
    return lines


def _lines(ran: RanProgram) -> list[str]:
    if ran.answer.invalid:
        return [f"program {ran.index}: {ran.answer.invalid}"]
    pairs = zip(ran.answer.failures, ran.tests, strict=True)
    return [f"program {ran.index}: {failure.text}\n{test}" for failure, test in pairs]


# The third slice has Python's dispatcher, the fourth none of PyTorch's kernels.
@pytest.mark.parametrize("first", [0, SLICE, 2 * BLOCK, 3 * BLOCK])
def test_programs_agree_with_eager_mode(first: int) -> None:
    assert not "\n".join(_run(SEED, first, SLICE))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [SEED + 1, SEED + 2, SEED + 3, SEED + 4])
def test_many_programs_agree_with_eager_mode(seed: int) -> None:
    assert not "\n".join(_run(seed, 0, 300))


@pytest.mark.skipif(not find_spec("tensorflow"), reason="TensorFlow is not installed")
@pytest.mark.parametrize("count", [20, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.timeout(1200)
def test_tensorflow_programs_agree(count: int) -> None:
    from tests.differential.tensorflow import run_some

    results = run_some(SEED, 0, count)
    assert not "\n".join(problem for result in results for problem in result.problems)


@pytest.mark.skipif(not find_spec("tensorflow"), reason="TensorFlow is not installed")
def test_planted_faults_of_tensorflow_are_found() -> None:
    from tests.differential.tensorflow import find_planted

    found = find_planted(seconds=30)
    assert len(found) >= 7
    assert [name for name, problem in found.items() if not problem] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_within_a_minute(name: str) -> None:
    assert find(name, 60, wanted=WANTED.get(name, ())).ran is not None


def test_a_planted_fault_is_found_and_shrunk() -> None:
    hit = find("lost_element", 60, shrinking=60)
    assert hit.ran is not None
    (test, *_) = hit.ran.tests
    assert "check(f, arguments" in test
    assert len(test.splitlines()) < 16


def test_a_program_follows_from_seed_and_index() -> None:
    for number in range(20):
        one, other = generate(3, number), generate(3, number)
        assert one.source() == other.source()
        assert (one.calls, one.backward, one.used()) == (other.calls, other.backward, other.used())
    assert len({generate(3, number).source() for number in range(20)}) == 20


def test_a_printed_program_runs_as_it_did() -> None:
    for number in range(20):
        program = generate(4, number)
        namespace = execute(program.source())
        runs = [observe(namespace["f"], namespace["arguments"], program) for _ in range(2)]
        assert not differences(*runs, random=program.random), program.source()


def test_a_printed_test_runs() -> None:
    program = Program(
        columns=("s", "n"),
        calls=((4, 1), (5, 2)),
        setup=(Statement("numbers({0}, {1}, 3)", ((Name("s"), 2), torch.float32), "x0"),),
        parameters=("x0", "n"),
        body=(Statement("{0}[{1}]", (Name("x0"), index((slice(Name("n"), None),))), "v1"),),
        result=(Name("v1"), None),
    )
    source = as_test(program, Mode("automatic", None), "test_it")
    namespace = execute("from tests.differential.checking import *\n\n" + source)
    namespace["test_it"]()


def test_what_torchs_partitioner_raises_is_torchs() -> None:
    """It saves a result, which the caller's function writes into before the gradients."""

    def f(x):  # type: ignore[no-untyped-def]
        v = x.sin()
        w = torch.tanh(v)
        Written.apply(v)
        return torch.cat([w, v])

    def arguments():  # type: ignore[no-untyped-def]
        x = numbers((4,), torch.float32, 1).requires_grad_()
        return locals()

    check(f, arguments, [()], Mode(), "backward")


def test_operands_are_printed_as_python_has_them() -> None:
    pieces = (slice(None, 2), slice(Code("{0}.shape[0]", (Name("x"),)), None, 2), 0, None, ...)
    assert shown(index(pieces)) == ":2, x.shape[0]::2, 0, None, ..."
    assert shown({"a": (1,), "b": [float("inf"), torch.int8]}) == (
        '{"a": (1,), "b": [float("inf"), torch.int8]}'
    )


def test_shrinking_keeps_what_fails() -> None:
    program = next(
        found
        for found in (generate(5, number) for number in range(200))
        if len(found.body) >= 5 and any(".view" in item.text for item in found.body)
    )

    def fails(candidate: Program, mode: Mode) -> bool:
        return any(".view" in item.text for item in candidate.body)

    small, mode = shrink(program, Mode("dynamic", True), fails, 10)
    assert fails(small, mode)
    assert mode == Mode()
    assert len(small.body) <= 2
    assert len(small.calls) == 1


def test_shrinking_gives_what_a_container_holds_by_itself() -> None:
    first, second = Name("x0"), Name("x1")
    setup = tuple(
        Statement("numbers({0}, {1}, 3)", ((4,), torch.float32), name.name)
        for name in (first, second)
    )
    held = Statement("{0}", ({"a": first, "b": [first, second]},), "c0")
    taken = element(element(Name("c0"), "b"), 1)
    body = (Statement("{0}.add_(1)", (taken,), "v1"), Statement("{0}.clear()", (Name("c0"),)))
    program = Program((), ((),), (*setup, held), ("c0",), body, Name("v1"), afterwards=("out",))

    def fails(candidate: Program, mode: Mode) -> bool:
        return any(".add_" in item.source() and "x" in item.source() for item in candidate.body)

    small, _ = shrink(program, Mode(), fails, 10)
    assert "c0" not in small.source()
    assert "x1.add_(1)" in small.source()
    assert not small.afterwards


def test_candidates_are_programs() -> None:
    for number in range(10):
        for candidate in candidates(generate(6, number)):
            compile(candidate.source(), "candidate", "exec")


MUTATING = Program(
    columns=("s",),
    calls=((4,), (6,), (1,), (4,)),
    setup=(
        Statement("numbers({0}, {1}, 3)", ((Name("s"), 2), torch.float32), "x0"),
        Statement("{0}", ([Name("x0")],), "c0"),
    ),
    parameters=("c0",),
    body=(Statement("{0}.add_(1)", (element(Name("c0"), 0),)),),
    result=Code("{0} * 2", (element(Name("c0"), 0),)),
)


@pytest.mark.parametrize("dynamic", [False, True])
def test_exported_models_write_into_arguments(
    dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = Mode("exported", dynamic, exported=True)
    judge = Judge(MUTATING)
    assert not judge.run(mode)
    assert judge.answer.modes == ["exported"]
    monkeypatch.setattr(loaded, "_write_into", lambda *_: None)
    assert {(item.kind, item.place) for item in judge.run(mode)} == {("value", "x0")}


def test_a_process_that_dies_is_a_failure_of_its_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # It answers where the program has no mode to run in.
    script = tmp_path / "worker"
    answer = """case "$line" in *'"count": 0'*) echo '{"failures": []}';; esac"""
    script.write_text(f"#!/bin/sh\nread line\n{answer}\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    worker = Worker()
    try:
        ran = Runner(Settings(shrinking=0)).one(worker, 7)
    finally:
        worker.stop()
    assert [failure.kind for failure in ran.answer.failures] == ["crash"]
    report = Report(0)
    report.add(ran)
    assert report.classes == {"wrong: crash": 1}


def test_a_program_that_ends_the_process_in_eager_mode_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    ran = Runner(Settings(shrinking=0)).one(Worker(), 7)
    report = Report(0)
    report.add(ran)
    assert not report.failures
    assert report.torches == {"eager mode: crash": 1}


def test_pairs_of_features_are_counted(tmp_path) -> None:  # type: ignore[no-untyped-def]
    report = Report(0)
    worker = Worker()
    monkey = replace(Settings(shrinking=0), count=1)
    try:
        report.add(Runner(monkey).one(worker, 3))
    finally:
        worker.stop()
    assert report.programs == 1
    assert report.pairs
    assert all(one < other for one, other in report.pairs)
    report.write(tmp_path / "report.json")
    assert os.path.getsize(tmp_path / "report.json")
    assert "views.slice" in report.table()
