"""Data that PyTorch refuses: the device refuses it, too, as PyTorch does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

from pjrt_bridge.torch_interop.device.programs import programs
from pjrt_bridge.torch_interop.resident.storages.transfer import COUNTS

CALLS: dict[str, Callable[[str], Any]] = {
    "bernoulli": lambda d: torch.bernoulli(torch.tensor([0.5, 2.0], device=d)),
    "bernoulli in place": lambda d: torch.ones(2, device=d).bernoulli_(
        torch.tensor([0.5, -1.0], device=d)
    ),
    "division by zero": lambda d: torch.arange(4, device=d) // torch.tensor([0], device=d),
    "remainder by zero": lambda d: torch.arange(2, device=d).remainder_(
        torch.tensor([1, 0], device=d)
    ),
    "class": lambda d: functional.cross_entropy(
        torch.ones(2, 3, device=d), torch.tensor([0, 5], device=d)
    ),
    "class without softmax": lambda d: functional.nll_loss(
        torch.ones(2, 3, device=d), torch.tensor([-1, 2], device=d)
    ),
    "deviations": lambda d: torch.normal(0.0, torch.tensor([1.0, -1.0], device=d)),
    "embedding": lambda d: functional.embedding(
        torch.tensor([9], device=d), torch.ones(3, 2, device=d)
    ),
    "gather": lambda d: torch.ones(3, device=d).gather(0, torch.tensor([3], device=d)),
    "input of binary cross entropy": lambda d: functional.binary_cross_entropy(
        torch.tensor([2.0], device=d), torch.tensor([1.0], device=d)
    ),
    "target of binary cross entropy": lambda d: functional.binary_cross_entropy(
        torch.tensor([0.5], device=d), torch.tensor([1.5], device=d)
    ),
    "source of a mask": lambda d: torch.ones(2, 3, device=d).masked_scatter(
        torch.tensor([True, False, True], device=d), torch.ones(3, device=d)
    ),
    "weights": lambda d: torch.multinomial(torch.tensor([-1.0, 2.0], device=d), 1),
    "weights of nothing": lambda d: torch.multinomial(torch.zeros(2, device=d), 1),
}


@pytest.fixture(params=["async", "fused"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    programs.forget()
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", request.param)
    yield request.param
    programs.forget()


@pytest.mark.parametrize("name", CALLS)
def test_errors_are_those_of_pytorch(name: str, mode: str) -> None:
    with pytest.raises(Exception, match=r"\w") as expected:
        CALLS[name]("cpu")
    # The third call of an operator is one of the compiled module.
    for _ in range(3):
        with pytest.raises(type(expected.value)) as raised:
            CALLS[name]("pjrt").cpu()
        assert str(raised.value) == str(expected.value)
        assert any("aten." in note for note in raised.value.__notes__)


def test_errors_of_recorded_calls_name_the_line(
    mode: str,
) -> None:
    with pytest.raises(IndexError) as raised:
        CALLS["class"]("pjrt").cpu()
    (note,) = raised.value.__notes__
    assert "aten.nll_loss" in note
    assert (f"called at {__file__}" in note) == (mode == "fused")


def test_data_within_the_ranges() -> None:
    p = torch.tensor([0.0, 0.25, 1.0], device="pjrt")
    for _ in range(3):
        assert torch.bernoulli(p)[::2].tolist() == [0, 1]
        loss = functional.binary_cross_entropy(p, p)
        torch.testing.assert_close(loss.cpu(), functional.binary_cross_entropy(p.cpu(), p.cpu()))
        assert torch.normal(p, p)[0].item() == 0


def _written(values: torch.Tensor, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[mask] = values
    return x


def test_values_for_the_hits_of_a_mask(mode: str) -> None:
    x, values = torch.arange(12.0).reshape(3, 4), torch.tensor([7.0, 8.0])
    for mask in (x % 7 == 2, torch.tensor([True, False, True])):
        given = values if mask.dim() == 2 else values[:, None].expand(2, 4).clone()
        for _ in range(3):
            before = COUNTS.to_host
            found = _written(given.to("pjrt"), x.to("pjrt"), mask.to("pjrt"))
            assert COUNTS.to_host == before
            assert torch.equal(found.cpu(), _written(given, x, mask))
    with pytest.raises(RuntimeError, match=r"shape mismatch: value tensor of shape \[2\]"):
        _written(values.to("pjrt"), x.to("pjrt"), (x > 2).to("pjrt")).cpu()


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize(
    "call",
    [
        lambda x, out: torch.add(x, x, out=out),
        lambda x, out: torch.amax(x, 0, out=out),
        lambda x, out: torch.gather(x, 0, torch.tensor([1], device=x.device), out=out),
        lambda x, out: torch.sum(x, 0, out=out),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.float32])
def test_types_of_results_that_are_given(
    call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    def judged(device: str) -> object:
        x, out = torch.tensor([1.5, 2.5], device=device), torch.empty(0, device=device, dtype=dtype)
        try:
            return call(x, out).tolist()
        except RuntimeError as error:
            return str(error)

    assert judged("pjrt") == judged("cpu")


def test_kaiser_window() -> None:
    for call in (
        lambda **k: torch.kaiser_window(5, **k),
        lambda **k: torch.kaiser_window(4, False, 3.0, **k),
    ):
        assert torch.equal(call(device="pjrt").cpu(), call())
