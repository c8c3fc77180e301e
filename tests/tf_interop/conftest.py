"""TensorFlow is optional: where it is not installed there is nothing to test but that."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

collect_ignore_glob = (
    [] if find_spec("tensorflow") else ["programs/*", "test_[!i]*.py", "triggers.py"]
)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """No warning was given before."""
    if find_spec("tensorflow"):
        from pjrt_bridge.tf_interop.ledger import LEDGER

        LEDGER.forget()
