"""What tests of torch start from: nothing that others compiled, or put on its device, is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pjrt_bridge.torch_interop.resident.client import chosen


def forget_compiled() -> None:
    """Drop compiled graphs, and the programs of operators on device `pjrt`."""
    torch.compiler.reset()
    chosen.forget_compiled()


def forget_device() -> None:
    """Have device `pjrt` stand for no client; whoever uses it next chooses one."""
    chosen._client = None
    chosen.chosen.cache_clear()
    chosen.forget_compiled()


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Random numbers do not depend on which tests a worker ran before.

    All are drawn from the host's generator. `torch.manual_seed` takes 10 ms: for each device that
    is not there it keeps a stack trace for later.
    """
    torch.default_generator.manual_seed(0)


@pytest.fixture
def fresh(same_numbers: None) -> Iterator[None]:
    """Nothing compiled before or after, and the same random numbers every time."""
    forget_compiled()
    yield
    forget_compiled()
