"""Speed for tests that collect garbage often: what the imports left is looked at no more."""

import gc

import pytest


@pytest.fixture(scope="session", autouse=True)
def _frozen() -> None:
    gc.collect()
    gc.freeze()
