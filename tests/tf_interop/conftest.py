"""TensorFlow is optional: where it is not installed there is nothing to test but that."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.fresh import fresh as fresh
from tests.fresh import same_numbers as same_numbers

collect_ignore_glob = (
    [] if find_spec("tensorflow") else ["programs/*", "test_[!i]*.py", "triggers.py"]
)


@pytest.fixture(autouse=True)
def no_warnings_before() -> None:
    """What was warned of in other tests is warned of again."""
    if find_spec("tensorflow"):
        from pjrt_bridge.tf_interop.ledger import LEDGER

        LEDGER.forget()
