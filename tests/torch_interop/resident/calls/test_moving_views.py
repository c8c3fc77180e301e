"""Views at ever other offsets of one storage: no program for each of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pjrt_bridge.torch_interop.device.programs import programs
from pjrt_bridge.torch_interop.ledger import EAGER
from pjrt_bridge.torch_interop.resident.storages import transfer
from tests.torch_interop.device.alike import assert_alike

Operator = Callable[[torch.Tensor, int], torch.Tensor]

READING: dict[str, Operator] = {
    "batch": lambda x, at: x[at : at + 3] @ x[0],
    "batch of columns": lambda x, at: (x[:, at : at + 3] + 1).clone(),
    "column": lambda x, at: x[:, at] * 2,
    "row": lambda x, at: x[at].exp(),
    "rows on both sides": lambda x, at: x[at] - x[at + 1],
    "transposed": lambda x, at: x[at : at + 2].t() * 2,
    "with other elements": lambda x, at: x.view(torch.int32)[at] + 1,
}


def _graphs() -> int:
    return len(EAGER.graphs) + len(transfer._programs)


def _without_programs(x: torch.Tensor) -> torch.Tensor:
    """A copy on the device, where no program is left of other tests."""
    here = x.to("pjrt")
    programs.forget()
    EAGER.forget()
    return here


@pytest.mark.parametrize("name", READING)
def test_operators_read_views_that_move(name: str) -> None:
    operator, x = READING[name], torch.rand(40, 40)
    here, counts = _without_programs(x), []
    for at in range(24):
        expected = operator(x, at)
        found = operator(here, at)
        if "batch" in name or name == "row":
            torch.testing.assert_close(found.cpu(), expected)
            assert found.stride() == expected.stride()
        else:
            assert_alike(found, expected)
        counts.append(_graphs())
    assert counts[15] == counts[-1]


WRITING: dict[str, Operator] = {
    "cache": lambda x, at: x[:, at].copy_(x[:, 39]),
    "element": lambda x, at: x[at, at].fill_(at),
    "in place": lambda x, at: x[at].mul_(2),
    "out": lambda x, at: torch.add(x[0], x[1], out=x[at + 2]),
    "row from another": lambda x, at: x[at].add_(x[at + 1]),
}


@pytest.mark.parametrize("name", WRITING)
def test_operators_write_through_views_that_move(name: str) -> None:
    operator, x = WRITING[name], torch.rand(40, 40)
    here, counts = _without_programs(x), []
    for at in range(24):
        operator(x, at)
        operator(here, at)
        torch.testing.assert_close(here.cpu(), x)
        counts.append(_graphs())
    assert counts[15] == counts[-1]


MIXED: dict[str, Operator] = {
    "rows of results": lambda x, at: ((x * 2)[at] + x[at + 1]).sum(),
    "cache that is read": lambda x, at: x[:, at].copy_(x[:, 39] * 2) @ x[0],
    "row and its number": lambda x, at: x[at] * (0.5 * at) + at,
}


@pytest.mark.parametrize("name", [*READING, *WRITING, *MIXED])
def test_recorded_operators_on_views_that_move_are_one_program(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", "fused")
    operator, x = {**READING, **WRITING, **MIXED}[name], torch.rand(40, 40)
    here, counts = _without_programs(x), []
    for at in range(24):
        expected, found = operator(x, at), operator(here, at)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found.cpu(), expected)
        torch.testing.assert_close(here.cpu(), x)
        counts.append(_graphs())
    assert counts[15] == counts[-1]


def test_gradients_through_rows_that_move(monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in ("async", "fused"):
        monkeypatch.setenv("PJRT_BRIDGE_EAGER", mode)
        x = torch.rand(20, 5)
        gradients = []
        for leaf in (x.clone().requires_grad_(), x.to("pjrt").requires_grad_()):
            total = sum(((leaf[at] * leaf[at + 1]).exp().sum() for at in range(19)), start=0.0)
            total.backward()
            gradients.append(leaf.grad.cpu())
        torch.testing.assert_close(gradients[1], gradients[0])


def test_values_at_moving_positions_are_read_by_one_program() -> None:
    x = torch.arange(60.0).reshape(20, 3)
    here = x.to("pjrt")
    counts = []
    for at in range(20):
        assert here[at, 1].item() == 3 * at + 1
        assert here[at].tolist() == x[at].tolist()
        counts.append(len(transfer._programs))
    assert counts[6] == counts[-1]


@pytest.mark.parametrize("mode", ["async", "fused"])
def test_memory_that_overlaps_is_refused_at_every_offset(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", mode)
    x = torch.ones(40, device="pjrt")
    for at in range(1, 20):
        with pytest.raises(RuntimeError, match="unsupported operation"):
            x[at : at + 8].add_(x[at - 1 : at + 7])
