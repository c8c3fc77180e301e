"""What every test of Hugging Face's libraries starts from."""

import os
from collections.abc import Iterator

# Read when the libraries are imported: models come from configurations, never from a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import transformers

from tests.dynamo import skip_guard_timing

skip_guard_timing()

# They say on standard error what their defaults are.
transformers.logging.set_verbosity_error()


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Random numbers do not depend on which tests a worker ran before."""
    torch.default_generator.manual_seed(0)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing compiled before or after."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()
