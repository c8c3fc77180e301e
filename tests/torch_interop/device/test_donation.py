"""Compiled graphs write new values into the memory of the old ones, where nobody else has these."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from pjrt_bridge.runtime import Buffer
from pjrt_bridge.runtime.core.buffer_core import BufferState
from pjrt_bridge.torch_interop.resident.storages.storage import contents_of

pytestmark = pytest.mark.usefixtures("device")

SHAPE = (256, 128)
"""Of tensors that are large enough to be donated."""


def add(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def compiled(x: torch.Tensor) -> torch.Tensor:
    function = torch.compile(add, backend="pjrt", fullgraph=True)
    return function(x)


def buffer_of(tensor: torch.Tensor) -> Buffer:
    found = contents_of(tensor).buffer
    assert isinstance(found, Buffer)
    return found


def test_the_memory_of_the_old_value_is_taken() -> None:
    x = torch.randn(SHAPE)
    given = x.to("pjrt")
    # What was put may be memory of the host.
    compiled(given)
    for count in (2, 3, 4):
        handle, address = buffer_of(given).handle, buffer_of(given).address
        compiled(given)
        assert handle.released
        assert buffer_of(given).address == address
        torch.testing.assert_close(given.cpu(), x + count)


@pytest.mark.parametrize("change", [add, compiled])
@pytest.mark.parametrize(
    "share",
    [
        lambda x: x.clone(),
        lambda x: torch.empty_like(x).copy_(x),
        copy.deepcopy,
        lambda x: x.clone().view(-1).view(SHAPE),
        lambda x: x.detach().clone().clone(),
    ],
    ids=["clone", "copy_", "deepcopy", "view", "twice"],
)
def test_a_copy_keeps_its_values(
    share: Callable[[torch.Tensor], torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = torch.randn(SHAPE)
    given = x.to("pjrt")
    for count in range(4):
        other = share(given)
        change(given)
        torch.testing.assert_close(other.cpu(), x + count)
        torch.testing.assert_close(given.cpu(), x + count + 1)
        change(other)
        torch.testing.assert_close(other.cpu(), x + count + 1)
        torch.testing.assert_close(given.cpu(), x + count + 1)


def test_a_value_that_was_read_before_is_not_taken() -> None:
    given = torch.randn(SHAPE).to("pjrt")
    held = buffer_of(given)
    values = held.to_numpy().copy()
    compiled(given)
    assert held.state is BufferState.LIVE
    assert (held.to_numpy() == values).all()
