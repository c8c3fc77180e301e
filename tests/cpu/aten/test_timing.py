"""What is measured: each kind as its rule calls it, and ratios of what a clock says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pjrt_bridge.runtime import Client
from pjrt_bridge_cpu.aten import loads, timing
from pjrt_bridge_cpu.aten.checks import TriedUse, checks
from pjrt_bridge_cpu.aten.timing import Timing
from pjrt_bridge_cpu.aten.trial import UseTrial

TOPK = TriedUse("aten.topk.default", (torch.randn(16, 256),), lambda _, v: (*v, 9, 1))
USE = "aten::topk.values float32"


@pytest.fixture(scope="module")
def usable() -> frozenset[str]:
    return frozenset(use for check in checks() for use in UseTrial(check).uses)


@pytest.mark.usefixtures("connected")
def test_a_ratio_is_that_of_medians(client: Client) -> None:
    """A clock that counts its own calls: all calls take as long."""
    count = iter(range(10_000))
    found = Timing(client, {USE}, lambda: float(next(count))).measure("topk", TOPK)
    assert found == ("topk float32", 16 * 256, 1.0)


@pytest.mark.usefixtures("connected")
def test_a_side_that_is_much_slower_is_not_measured_again(client: Client) -> None:
    def clock() -> Iterator[float]:
        for seconds in (8.0, 9.0, 2.0, 2.0):
            yield 0.0
            yield seconds

    found = Timing(client, {USE}, clock().__next__).measure("topk", TOPK)
    assert found == ("topk float32", 16 * 256, 4.0)


@pytest.mark.usefixtures("connected")
def test_what_is_not_right_or_of_another_kind_is_not_measured(client: Client) -> None:
    assert Timing(client, set()).measure("topk", TOPK) is None
    assert Timing(client, {USE}).measure("cumsum", TOPK) is None


@pytest.mark.usefixtures("connected")
def test_it_ends_when_its_time_is_over(client: Client, usable: frozenset[str]) -> None:
    assert Timing(client, usable).ratios(seconds=-1) == {}


def test_every_load_is_a_call_of_its_kind(usable: frozenset[str]) -> None:
    """But of small matrices, which the rules leave to XLA."""
    kinds: dict[str, bool] = {}
    for kind, use in loads.measured():
        only = timing._OneKind(kind, usable)
        timing.lowered(use, use.expected(), only, own=True)
        kinds[kind] = kinds.get(kind, False) or only.met is not None
    assert all(kinds.values()), kinds
