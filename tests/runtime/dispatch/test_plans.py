"""What `Plan` refuses: numbers, functions and arguments that cannot be right."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.runtime import Client
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from tests import programs
from tests.conftest import Census
from tests.plugins import require_dispatcher
from tests.runtime.dispatch.launching import Launcher

require_dispatcher()

ONES = torch.ones(64)
NUMBERS = plans._numbers


@pytest.mark.parametrize(
    "change",
    [
        lambda numbers: numbers[:-1],
        lambda numbers: numbers[:5],
        lambda numbers: [],
        lambda numbers: [*numbers, 0],
        lambda numbers: [*numbers[:6], -1, *numbers[7:]],
        lambda numbers: [*numbers[:6], 2**62, *numbers[7:]],
        lambda numbers: [*numbers[:3], -256, *numbers[4:]],
    ],
    ids=["one less", "no lists", "none", "one more", "rank -1", "huge rank", "size -256"],
)
def test_numbers_that_are_no_forms(
    client: Client, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[int]], list[int]]
) -> None:
    monkeypatch.setattr(plans, "_numbers", lambda *args, **more: change(NUMBERS(*args, **more)))
    with client.compile(programs.ADD) as executable:
        with pytest.raises(ValueError, match="numbers: "):
            Launcher(executable)
        monkeypatch.undo()
        assert Launcher(executable)(ONES, ONES)[0].tolist() == [2.0] * 64


@pytest.mark.parametrize("entry", [(0, 24), (1, 0), (1, -8)])
def test_functions_that_are_none(
    client: Client, monkeypatch: pytest.MonkeyPatch, entry: tuple[int, int]
) -> None:
    monkeypatch.setattr(plans, "_entry", lambda api, name: entry)
    with (
        client.compile(programs.ADD) as executable,
        pytest.raises(ValueError, match=r"address \d and size -?\d+ of Error_Destroy"),
    ):
        Launcher(executable)


def test_a_parameter_without_value_and_buffer(no_leaks: Census, client: Client) -> None:
    """A plugin would follow the NULL."""
    with client.compile(programs.ADD) as executable:
        launcher = Launcher(executable, [client.put(ONES)])
        nothing = plans.PinnedBuffers([None, None], [0, 0])
        with pytest.raises(IndexError):
            launcher.plan.launch([ONES], nothing.parts, None)
        with pytest.raises(IndexError):
            launcher.plan.call((ONES,), nothing.parts)


def test_values_that_leave_the_list_while_it_is_read(no_leaks: Census, client: Client) -> None:
    alive: list[bool] = []
    values: list[Any] = [torch.ones(64), ONES]
    first = weakref.ref(values[0])

    def is_lazy(tensor: Any) -> bool:
        values[0] = None
        return False

    def owner(tensor: Any) -> Any:
        alive.append(first() is not None)
        return torch.Tensor.untyped_storage(tensor)

    exchange = ADAPTER.exchange()
    assert exchange is not None
    exchange = dataclasses.replace(exchange, is_lazy=is_lazy, owner=owner)
    with client.compile(programs.ADD) as executable:
        launcher = Launcher(executable, (), exchange)
        launch = launcher.plan.launch(values, launcher.kept.parts, None)
        assert alive == [True, False]
        launch.finish()
        assert launch.tensors()[0].tolist() == [2.0] * 64
