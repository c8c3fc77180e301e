"""Operators called at one size after another: no program for each of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from pjrt_bridge.errors import HostFallbackWarning
from pjrt_bridge.torch_interop.device.programs import programs
from pjrt_bridge.torch_interop.ledger import EAGER
from pjrt_bridge.torch_interop.resident.calls import changing_sizes
from pjrt_bridge.torch_interop.resident.storages import transfer

Operator = Callable[[torch.Tensor, int], torch.Tensor]

CHANGING: dict[str, Operator] = {
    "diagonal": lambda x, n: x.tril(n),
    "filled": lambda x, n: torch.full((n,), 2.5, device=x.device),
    "largest": lambda x, n: x.topk(n).values,
    "one-hot": lambda x, n: functional.one_hot(x.argmax(1), 100 + n),
    "power": lambda x, n: x**n,
    "prefix": lambda x, n: x[:n].sum(1),
    "product of prefixes": lambda x, n: x[:, :n] @ x[:n],
    "range": lambda x, n: torch.arange(n, device=x.device),
    "range of floats": lambda x, n: torch.arange(float(n), device=x.device),
    "variance": lambda x, n: x.var(0, correction=n),
    "written prefix": lambda x, n: x.clone()[:n].mul_(2),
    "zeros": lambda x, n: torch.zeros(n, 3, device=x.device),
}


@pytest.mark.parametrize("name", CHANGING)
def test_sizes_that_keep_changing_have_no_program_each(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing_sizes, "_PROGRAMS", 4)
    operator, x = CHANGING[name], torch.rand(40, 40)
    here, counts = x.to("pjrt"), []
    programs.forget()
    EAGER.forget()
    for size in range(1, 25):
        found, expected = operator(here, size), operator(x, size)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found.cpu(), expected, equal_nan=True)
        counts.append(len(EAGER.graphs) + len(transfer._programs))
    assert counts[15] == counts[-1]


def test_the_first_size_without_a_program_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_sizes, "_PROGRAMS", 3)
    x = torch.rand(8, 8).to("pjrt")
    programs.forget()

    def call(sizes: range) -> None:
        for size in sizes:
            x[:size].exp()
            x[:size].sin()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(range(1, 4))
    with pytest.warns(HostFallbackWarning, match=r"aten.exp.default has programs for 3") as told:
        call(range(4, 7))
    assert len(told) == 1
    assert told[0].filename == __file__


def test_sizes_that_come_again_get_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_sizes, "_PROGRAMS", 2)
    x = torch.rand(8, 8).to("pjrt")
    programs.forget()
    EAGER.forget()
    for _ in range(6):
        for size in range(1, 6):
            x[:size].exp()
    assert len(EAGER.graphs) == 5


def test_what_is_drawn_at_changing_sizes_follows_the_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drawn(size: int) -> list[float]:
        torch.manual_seed(7)
        return torch.rand(size, device="pjrt").tolist()

    expected = [drawn(size) for size in range(1, 9)]
    monkeypatch.setattr(changing_sizes, "_PROGRAMS", 0)
    programs.forget()
    assert [drawn(size) for size in range(1, 9)] == expected


def test_errors_at_changing_sizes_are_those_of_the_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changing_sizes, "_PROGRAMS", 0)
    programs.forget()
    x = torch.ones(3, 4, device="pjrt")
    with pytest.raises(RuntimeError, match="must match the size"):
        x + torch.ones(5, device="pjrt")
    with pytest.raises(IndexError, match="out of range"):
        functional.embedding(torch.tensor([7], device="pjrt"), x)
