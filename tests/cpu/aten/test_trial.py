"""The judgement of a use: what it takes to be right."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pjrt_bridge import registry
from pjrt_bridge.runtime import Client
from pjrt_bridge_cpu.aten import calls, findings, library, rules
from pjrt_bridge_cpu.aten.checks import NUMBERS, TriedUse, checks
from pjrt_bridge_cpu.aten.operators import OPERATORS
from pjrt_bridge_cpu.aten.trial import UseTrial
from tests.cpu.aten.comparing import compare
from tests.cpu.aten.test_rows import FLOATING, ORDERED, every_dimension

X = torch.arange(300.0).reshape(2, 150)


@pytest.fixture(scope="module")
def device() -> Client:
    client = registry.client("cpu")
    assert library.connect(client) == ""
    return client


def check(operator: str, *arguments: Any, x: torch.Tensor = X) -> TriedUse:
    return TriedUse(operator, (x,), lambda _, v: (*v, *arguments))


@pytest.fixture
def _off_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call's results are more by that, in their element type."""

    def emit(b: Any, call: Any) -> Any:
        results = calls.emit(b, call)
        return tuple(b.add(r, b.full(r.shape, request.param, r.dtype)) for r in results)

    monkeypatch.setattr(rules, "emit", emit)


def test_right_ones(device: Client) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = torch.stack([torch.randperm(128) for _ in range(40)]).to(dtype)
        assert UseTrial(check("aten.topk.default", 9, 1, x=x)).judge(device) == ""


@pytest.mark.parametrize("_off_by", [1], indirect=True)
@pytest.mark.usefixtures("_off_by")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_place_is_not_nearly_right(device: Client, dtype: torch.dtype) -> None:
    x = torch.stack([torch.randperm(150) for _ in range(40)]).to(dtype)
    assert "not PyTorch's" in UseTrial(check("aten.topk.default", 9, 1, x=x)).judge(device)


@pytest.mark.parametrize("_off_by", [0.1, float("nan")], indirect=True)
@pytest.mark.usefixtures("_off_by")
def test_wrong_numbers(device: Client) -> None:
    x = torch.rand(40, 150)
    assert "not PyTorch's" in UseTrial(check("aten._softmax.default", 1, False, x=x)).judge(device)


def test_one_that_cannot_be_made_says_why(device: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def emit(b: Any, call: Any) -> Any:
        return calls.emit(
            b, calls.KernelCall(call.operator, {**call.arguments, "dim": 9}, call.results)
        )

    monkeypatch.setattr(rules, "emit", emit)
    x = torch.rand(40, 150)
    reason = UseTrial(check("aten._softmax.default", 1, False, x=x)).judge(device)
    assert "aten._softmax.default of float32[40, 150]: " in reason
    assert "Dimension out of range" in reason


@pytest.mark.slow
@pytest.mark.usefixtures("fresh", "always")
def test_every_use_along_rows_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()

    def note(library: Any, use: str) -> bool:
        asked.add(use)
        return True

    monkeypatch.setattr(findings, "is_usable", note)
    for dtype in NUMBERS:
        functions = FLOATING | ORDERED if dtype.is_floating_point else ORDERED
        compare(every_dimension(functions), torch.ones(2, 3).to(dtype))
    assert len(asked) > 15
    assert asked <= {use for item in checks() for use in UseTrial(item).uses}


def test_every_operator_is_used_by_a_check() -> None:
    used = {use.split()[0] for item in checks() for use in UseTrial(item).uses}
    assert used == {str(operator).removesuffix(".") for operator in OPERATORS}
