"""Arguments that a program updates where they lie."""

from collections.abc import Callable

import pytest
import torch

from pjrt_bridge.errors import HostFallbackWarning, PjrtError
from pjrt_bridge.runtime import native
from pjrt_bridge.torch_interop.bind.adapter import TorchAdapter
from tests.faults.segments import Faults
from tests.torch_interop.helpers import (
    assert_same,
    compiled,
)

pytestmark = pytest.mark.usefixtures("fresh")


LARGE = 1 << 15


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each argument that was updated, whether its new value had to be copied.

    The dispatcher sees to it itself in calls after the first (`bind/test_updates.py`).
    """
    found: list[bool] = []

    def assign(self: TorchAdapter, target: torch.Tensor, value: torch.Tensor) -> None:
        found.append(target.data_ptr() != value.data_ptr())
        original(self, target, value)

    original = TorchAdapter.assign
    monkeypatch.setattr(TorchAdapter, "assign", assign)
    return found


def decay(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x.sum()
    x.mul_(0.5).add_(y)
    return total


def test_large_arguments_are_updated_where_they_lie(way: str, copies: list[bool]) -> None:
    run = compiled(decay)
    ours, theirs = (torch.arange(LARGE, dtype=torch.float32) for _ in range(2))
    for step in range(3):
        y = torch.full((LARGE,), float(step))
        version = ours._version
        assert_same([run(ours, y), ours], [decay(theirs, y), theirs])
        assert ours._version > version
    assert copies == [False] * (3 if way == "python" else 1)


@pytest.mark.parametrize(
    ("make", "each"),
    [
        (lambda: torch.arange(LARGE + 1, dtype=torch.float32)[1:], False),
        (lambda: torch.arange(2 * LARGE, dtype=torch.float32)[::2], True),
        (lambda: torch.arange(1024.0), False),
    ],
    ids=["unaligned", "with gaps", "small"],
)
def test_what_cannot_be_updated_in_place_is_copied(
    make: Callable[[], torch.Tensor], each: bool, copies: list[bool]
) -> None:
    run, ours, theirs = compiled(decay), make(), make()
    for _ in range(2):
        y = torch.ones_like(ours)
        assert_same([run(ours, y), ours], [decay(theirs, y), theirs])
    assert copies == [True] * (2 if each or native.module is None else 1)


def test_a_permuted_argument_is_updated_where_it_lies(copies: list[bool]) -> None:
    run, ours, theirs = compiled(decay), *(torch.ones(256, 128).t() for _ in range(2))
    y = torch.randn(128, 256)
    assert_same([run(ours, y), ours], [decay(theirs, y), theirs])
    assert copies == [False]


def test_backward_notices_that_what_it_saved_was_updated() -> None:
    x = torch.ones(LARGE)
    w = torch.ones(LARGE, requires_grad=True)
    result = (w * x).sum()
    compiled(decay)(x, torch.ones(LARGE))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_updates_in_inference_mode(copies: list[bool]) -> None:
    with torch.inference_mode():
        ours, theirs = torch.ones(LARGE), torch.ones(LARGE)
        assert_same(
            [compiled(decay)(ours, ours.exp()), ours], [decay(theirs, theirs.exp()), theirs]
        )
    assert copies == [False]


def test_a_failure_on_the_way_of_an_update_reaches_the_user(faults: Faults) -> None:
    run, x = compiled(decay, fallback="host"), torch.ones(LARGE)
    y = x.exp()
    for when in ("start", "end"):
        faults.failing = ("inference", when)
        with pytest.warns(HostFallbackWarning), pytest.raises(PjrtError) as caught:
            run(x, y)
        assert "tensors that it updates may hold old, new" in caught.value.__notes__[0]
    faults.failing = ("inference", "put")
    theirs = x.clone()
    with pytest.warns(HostFallbackWarning):
        found = run(x, y)
    assert_same([found, x], [decay(theirs, y), theirs])
