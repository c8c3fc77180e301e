"""What the fuzzer compares of two runs, and what it takes for torch's or for rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.differential import noise
from tests.differential.checking import check
from tests.differential.comparing import Difference, alike, differences
from tests.differential.ir import Code, Name, Program, Statement
from tests.differential.judging import Judge
from tests.differential.laying_out import laid_out
from tests.differential.modes import Mode
from tests.differential.observing import Call, Seen, observe
from tests.differential.using import USES
from tests.differential.values import numbers

# -- slices of the fuzzer --------------------------------------------------------------------------


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
        (lambda x, w: x[0], lambda x, w: x[0].detach(), "view"),
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


def _two_views(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    product = w * 2
    return product.view(3, 1), product.view(1, 3)


def _one_is_a_copy(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    one, other = _two_views(x, w)
    return one, other.clone()


@pytest.mark.parametrize(("afterwards", "expected"), [((), set()), (("weighted",), {"gradient"})])
def test_results_are_multiplied_in_place_before_gradients(
    afterwards: tuple[str, ...], expected: set[str]
) -> None:
    program = replace(TWICE, backward="backward", afterwards=afterwards)
    found = _found(_one_is_a_copy, _two_views, program)
    assert {item.kind for item in found} & {"gradient"} == expected
    assert not _found(_two_views, _two_views, program)


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


def test_gradients_are_compared() -> None:
    for how in ("backward", "grad", "twice"):
        assert _kinds(lambda x, w: w * 2, lambda x, w: w * 2, how) == set()
        assert "gradient" in _kinds(lambda x, w: w * 2, lambda x, w: w * 1 + w.detach(), how)


def test_zeros_are_no_missing_gradient() -> None:
    def alone(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * 2 + torch.zeros(1, requires_grad=True)

    def beside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * 2 + (w * 0).sum()

    assert _kinds(alone, beside, "backward") == {"no gradient"}


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


def test_rounding_is_told_in_gradients_of_branches() -> None:
    def f(x0: torch.Tensor) -> torch.Tensor:
        return torch.cond(x0.sum() > 0, lambda a: a.sin(), lambda a: -a, (x0,)).exp()

    def arguments() -> dict[str, Any]:
        return {"x0": (numbers((5,), torch.float32, 1).abs() / 3).requires_grad_()}

    program = Program(parameters=("x0",), calls=((),), backward="backward")
    (call,) = observe(f, arguments, program)
    (name, seen), *_ = call.gradients.items()
    for factor, rounded in ((1 + 1e-7, True), (1.01, False)):
        gradients = {name: replace(seen, value=seen.value * factor)}
        wrong = [Difference("gradient", 0, f"gradient of {name}", "")]
        found = noise.within_rounding(
            program,
            lambda: {"f": f, "arguments": arguments},
            [call],
            [replace(call, gradients=gradients)],
            wrong,
        )
        assert bool(found) == rounded


def test_strides_that_torch_does_not_keep_to_are_its_own() -> None:
    # What is promised of `expand` has another stride where a dimension has size one.
    def f(x0: torch.Tensor) -> torch.Tensor:
        return x0.expand((1, 4, -1)) + 1

    def arguments() -> dict[str, Any]:
        return {"x0": numbers((6, 2), torch.float32, 1)[:, :1].t()}

    for dynamic in (False, True):
        check(f, arguments, [()], Mode("dynamic", dynamic))


@pytest.mark.parametrize("use", ["grown", "shrunk"])
def test_what_results_hold_that_are_resized_follows_from_their_strides(use: str) -> None:
    # Torch promises of half precision, which it converts, the strides of what is expanded.
    def f(x0: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda a: (a * a).sum())(x0)

    def arguments() -> dict[str, Any]:
        return {"x0": numbers((4, 3, 2), torch.float16, 15).permute((2, 1, 0))}

    check(f, arguments, [()], Mode(), afterwards=(use,))


@pytest.mark.parametrize("mode", [Mode(), Mode("fused", eager="fused")], ids=lambda mode: mode.name)
def test_results_that_overlap_themselves_are_shrunk(mode: Mode) -> None:
    def f(x0: torch.Tensor) -> torch.Tensor:
        return x0.expand((3, 2))

    def arguments() -> dict[str, Any]:
        return {"x0": numbers((2,), torch.int32, 0)}

    check(f, arguments, [()], mode, afterwards=("shrunk",))


def test_draws_are_compared() -> None:
    def fixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.rand(80, generator=torch.Generator().manual_seed(1))

    def free(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.rand(80)

    assert _kinds(free, free, random=True) == set()
    assert "draws" in _kinds(fixed, free, random=True)
    assert "distribution" in _kinds(lambda x, w: torch.rand(80) + 1, free, random=True)


def test_means_of_draws_that_follow_from_each_other_scatter() -> None:
    """A difference of distributions is told by what other seeds give."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.randn(80).cumsum(-1) + x

    def arguments() -> dict[str, Any]:
        x = torch.zeros(1)
        return locals()

    program = Program(parameters=("x",), calls=((),), random=True)
    namespace = {"f": f, "arguments": arguments}
    (call,) = observe(f, arguments, program)
    (place,) = call.results
    wrong = [Difference("distribution", 0, place, "")]
    assert noise.within_scatter(program, lambda: namespace, [call], wrong) == wrong
    call.results[place] = Seen.of(torch.full((80,), 1000.0))
    assert not noise.within_scatter(program, lambda: namespace, [call], wrong)


def test_denormal_numbers_may_be_taken_for_zero() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 1e-20 * 1e-20 * 1e25

    def arguments() -> dict[str, Any]:
        x = torch.ones(3)
        return locals()

    program = Program(parameters=("x",), calls=((),))
    expected = observe(f, arguments, program)
    found = observe(lambda x: x * 0, arguments, program)
    wrong = differences(found, expected)
    assert [item.kind for item in wrong] == ["value"]
    namespace = {"f": f, "arguments": arguments}
    assert noise.within_rounding(program, lambda: namespace, expected, found, wrong) == wrong
    # What follows from normal numbers is not explained.
    found = observe(lambda x: x * 1e-14, arguments, program)
    wrong = differences(found, expected)
    assert not noise.within_rounding(program, lambda: namespace, expected, found, wrong)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (IndexError("found 2"), RuntimeError("INDICES element is out of DATA bounds, id=2"), True),
        (IndexError("found 2"), RuntimeError("index 5 is out of bounds for dimension 0"), True),
        (IndexError("found 2"), RuntimeError("shape '[2]' is invalid"), False),
    ],
)
def test_errors_of_indices_are_of_one_family(one: Exception, other: Exception, same: bool) -> None:
    assert alike(one, other) == same
