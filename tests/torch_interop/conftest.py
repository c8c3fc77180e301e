"""What every test of the backend starts from."""

import os
from collections.abc import Iterator

# Read when transformers is imported: its models come from configurations, never from a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing compiled before or after, and the same random numbers every time."""
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()
