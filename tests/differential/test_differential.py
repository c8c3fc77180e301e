"""Random programs agree with eager mode, and what does not would be seen."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from pjrt_bridge.exported import loaded
from tests.differential import noise
from tests.differential.checking import check
from tests.differential.comparing import Difference, differences
from tests.differential.faults import FAULTS, WANTED
from tests.differential.generating import generate
from tests.differential.ir import Code, Name, Program, Statement, element, index, shown
from tests.differential.judging import Judge
from tests.differential.laying_out import laid_out
from tests.differential.modes import Mode
from tests.differential.observing import Call, execute, observe
from tests.differential.planting import find
from tests.differential.printing import as_test
from tests.differential.report import Report
from tests.differential.runner import BLOCK, Ran, Runner, Settings, Worker
from tests.differential.shrinking import candidates, shrink
from tests.differential.using import USES
from tests.differential.values import numbers

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


def _lines(ran: Ran) -> list[str]:
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


# -- planted faults --------------------------------------------------------------------------------


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


# -- programs --------------------------------------------------------------------------------------


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


def test_operands_are_printed_as_python_has_them() -> None:
    pieces = (slice(None, 2), slice(Code("{0}.shape[0]", (Name("x"),)), None, 2), 0, None, ...)
    assert shown(index(pieces)) == ":2, x.shape[0]::2, 0, None, ..."
    assert shown({"a": (1,), "b": [float("inf"), torch.int8]}) == (
        '{"a": (1,), "b": [float("inf"), torch.int8]}'
    )


# -- shrinking -------------------------------------------------------------------------------------


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


# -- comparing -------------------------------------------------------------------------------------


TWICE = Program(parameters=("x", "w"), calls=((), ()))


def _observed(function, program: Program = TWICE) -> list[Call]:  # type: ignore[no-untyped-def]
    def arguments() -> dict[str, Any]:
        b = torch.arange(12.0).reshape(3, 4)
        x = b[1:]
        w = torch.ones(3, requires_grad=True)
        return {"b": b, "x": x, "w": w, "c": [x, w, {"a": x}]}

    return observe(function, arguments, program)


def _found(one, other, program: Program = TWICE) -> list[Difference]:  # type: ignore[no-untyped-def]
    return differences(_observed(one, program), _observed(other, program), random=program.random)


def _kinds(one, other, backward: str = "", random: bool = False) -> set[str]:  # type: ignore[no-untyped-def]
    program = replace(TWICE, backward=backward, random=random)
    return {item.kind for item in _found(one, other, program)}


def _raise(error: Exception) -> None:
    raise error


KEPT: list[torch.Tensor] = []


def _kept(x: torch.Tensor) -> torch.Tensor:
    KEPT.append(x + 1)
    return KEPT[0].copy_(x + 1)


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (lambda x, w: x * 2, lambda x, w: x * 2.0001, "value"),
        (lambda x, w: x > 5, lambda x, w: x > 6, "value"),
        (lambda x, w: x.int(), lambda x, w: x.int() + 1, "value"),
        (lambda x, w: x / 0, lambda x, w: (x / 0).nan_to_num(), "value"),
        (lambda x, w: x * 2, lambda x, w: (x * 2).double(), "dtype"),
        (lambda x, w: x * 2, lambda x, w: (x * 2)[:1], "shape"),
        (lambda x, w: x * 2, lambda x, w: (x * 2).t().contiguous().t(), "strides"),
        (lambda x, w: (x * 2)[1], lambda x, w: (x * 2)[1].clone(), "offset"),
        (lambda x, w: x[0], lambda x, w: x[0].clone(), "alias"),
        (lambda x, w: x[0], lambda x, w: x[0].clone(), "write"),
        (lambda x, w: x.clone(), lambda x, w: x[:], "write"),
        (lambda x, w: x[0], lambda x, w: x[1], "alias"),
        (lambda x, w: x, lambda x, w: x[:], "identity"),
        (lambda x, w: [x + 1] * 2, lambda x, w: [x + 1, x + 1], "identity"),
        (lambda x, w: x.add_(1).sum(), lambda x, w: (x + 1).sum(), "value"),
        (lambda x, w: x.add_(1).sum(), lambda x, w: x.data.add_(1).sum(), "version"),
        (lambda x, w: x.add_(1), lambda x, w: _raise(RuntimeError("no")), "exception"),
        (lambda x, w: _raise(IndexError("no")), lambda x, w: x, "missing exception"),
        (lambda x, w: _raise(IndexError()), lambda x, w: _raise(TypeError()), "other exception"),
        (lambda x, w: [x], lambda x, w: (x,), "structure"),
        (lambda x, w: {"a": 1}, lambda x, w: {"a": 1.0}, "type"),
        (lambda x, w: 1, lambda x, w: 2, "value"),
        (lambda x, w: w * 2, lambda x, w: (w * 2).detach(), "requires_grad"),
        (lambda x, w: x + 1, lambda x, w: _kept(x), "later"),
        (lambda x, w: torch.complex(x, x).conj(), lambda x, w: torch.complex(x, -x), "bits"),
    ],
)
def test_a_difference_is_seen(one, other, kind: str) -> None:  # type: ignore[no-untyped-def]
    KEPT.clear()
    assert kind in _kinds(other, one)
    KEPT.clear()
    assert not _kinds(one, one)


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (lambda c: c.append(c[0] + 1), lambda c: None, "structure"),
        (lambda c: c.insert(0, c.pop(1)), lambda c: None, "value"),
        (lambda c: c[2].update(a=c[0] + 1), lambda c: c[2].update(a=c[0] + 2), "value"),
        (lambda c: c.insert(0, c[0][:1]), lambda c: c.insert(0, c[0][:1].clone()), "alias"),
        (lambda c: c[2]["a"].add_(1)[:0], lambda c: c[2]["a"][:0], "version"),
        (lambda c: c[0], lambda c: c[0][:], "identity"),
    ],
)
def test_what_containers_hold_is_compared(one, other, kind: str) -> None:  # type: ignore[no-untyped-def]
    program = replace(TWICE, parameters=("c",))
    assert kind in {item.kind for item in _found(one, other, program)}
    assert not _found(one, one, program)


@pytest.mark.parametrize("use", USES)
def test_what_becomes_of_used_results_is_seen(use: str) -> None:
    program = replace(TWICE, afterwards=(use,))
    (call, _) = _observed(lambda x, w: x + 1, program)
    before, after = call.results["result"], call.used["result after use"]
    assert call.used[f"result {use}"] == ""
    assert before.shape != after.shape or not torch.equal(before.value, after.value)
    assert not _found(lambda x, w: x + 1, lambda x, w: x + 1, program)


def test_what_is_written_into_a_result_is_seen_in_the_next_call() -> None:
    def kept(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        KEPT.append(x + 1)
        return KEPT[0]

    KEPT.clear()
    found = _found(kept, lambda x, w: x + 1, replace(TWICE, afterwards=("written",)))
    KEPT.clear()
    assert ("value", 1, "result") in {item.key for item in found}
    found = _found(
        lambda x, w: x[:1], lambda x, w: x[:1].clone(), replace(TWICE, afterwards=("out",))
    )
    assert ("value", 0, "b after use") in {item.key for item in found}


def test_results_are_expected_in_the_layout_that_is_asked_for() -> None:
    def turned(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = (x + 1).t().contiguous().t()
        return result, result, x, x[:1]

    plain = _observed(lambda x, w: (*[x + 1] * 2, x, x[:1]))
    assert not differences(_observed(turned), laid_out(plain, "column-major"))
    assert {item.kind for item in differences(plain, laid_out(plain, "column-major"))} == {
        "strides"
    }


# -- torch's device `pjrt` -------------------------------------------------------------------------


@pytest.mark.parametrize("eager", ["async", "fused"])
def test_storages_that_cannot_grow_are_no_difference(eager: str) -> None:
    def judged(result: Code) -> Judge:
        setup = [
            Statement("numbers({0}, {1}, 3)", ((size,), torch.float32), f"x{size}")
            for size in (2, 3)
        ]
        body = (Statement("{0}[:]", (Name("x2"),), "v1"), Statement("{0}", (result,)))
        judge = Judge(Program((), ((),), tuple(setup), ("x2", "x3"), body, Name("v1")))
        assert not judge.run(Mode("resident", eager=eager))
        return judge

    outs = (Name("x3"), Name("x2"))
    grown = judged(Code("torch.add({0}, 1, out={1})", outs))
    assert grown.answer.refused == {"resident": "larger storages of several tensors"}
    shrunk = judged(Code("torch.add({0}[:1], 1, out={1})", outs))
    assert shrunk.answer.modes == ["resident"]


# -- exporting -------------------------------------------------------------------------------------


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


def test_gradients_are_compared() -> None:
    for how in ("backward", "grad", "twice"):
        assert _kinds(lambda x, w: w * 2, lambda x, w: w * 2, how) == set()
        assert "gradient" in _kinds(lambda x, w: w * 2, lambda x, w: w * 1 + w.detach(), how)


def test_what_cancels_within_an_operator_is_rounding() -> None:
    def f(x0: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x0, (2,))

    def arguments() -> dict[str, Any]:
        x0 = numbers((2,), torch.float64, 1).requires_grad_()
        return {"x0": x0}

    check(f, arguments, [()], Mode(), "backward")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padding_times_infinite_weights_is_as_the_kernel_likes(dtype: torch.dtype) -> None:
    def f(x0: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor) -> Any:
        y = nn.functional.conv1d(x0, x1, padding=1)
        return y, nn.functional.conv2d(x2, x1.unsqueeze(-1), padding=(1, 0), groups=3)

    def arguments() -> dict[str, Any]:
        x0 = numbers((2, 1, 5), dtype, 0)
        x1 = numbers((3, 1, 3), dtype, 1)
        x1[0, 0, 0] = float("inf")
        return {"x0": x0, "x1": x1, "x2": numbers((1, 3, 5, 2), dtype, 2)}

    check(f, arguments, [()], Mode())
    (call,) = observe(f, arguments, replace(TWICE, parameters=("x0", "x1", "x2"), calls=((),)))
    wrong = replace(call, results=dict(call.results))
    place, seen = next(iter(call.results.items()))
    inner = seen.value.clone()
    inner[0, 0, 2] = torch.nan
    wrong.results[place] = replace(seen, value=inner)
    found = differences([wrong], [call])
    program = Program(parameters=("x0", "x1", "x2"), calls=((),))
    functions = {"f": f, "arguments": arguments}
    assert found
    assert not noise.within_rounding(program, lambda: functions, [call], [wrong], found)


def test_strides_that_torch_does_not_keep_to_are_its_own() -> None:
    # What is promised of `expand` has another stride where a dimension has size one.
    def f(x0: torch.Tensor) -> torch.Tensor:
        return x0.expand((1, 4, -1)) + 1

    def arguments() -> dict[str, Any]:
        return {"x0": numbers((6, 2), torch.float32, 1)[:, :1].t()}

    for dynamic in (False, True):
        check(f, arguments, [()], Mode("dynamic", dynamic))


def test_draws_are_compared() -> None:
    def fixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.rand(80, generator=torch.Generator().manual_seed(1))

    def free(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.rand(80)

    assert _kinds(free, free, random=True) == set()
    assert "draws" in _kinds(fixed, free, random=True)
    assert "distribution" in _kinds(lambda x, w: torch.rand(80) + 1, free, random=True)


# -- processes -------------------------------------------------------------------------------------


def test_a_process_that_dies_is_a_failure_of_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    worker = Worker()
    ran = Runner(Settings(shrinking=0)).one(worker, 7)
    assert [failure.kind for failure in ran.answer.failures] == ["crash"]
    report = Report(0)
    report.add(ran)
    assert report.classes == {"wrong: crash": 1}


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
