"""Every test starts with nothing compiled."""

from collections.abc import Iterator

import pytest
import torch

from tests.torch_interop.mixed import operators


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    torch.compiler.reset()
    torch.default_generator.manual_seed(0)
    operators.order.clear()
    yield
    torch.compiler.reset()
