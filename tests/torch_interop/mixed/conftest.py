"""Every test starts with nothing compiled."""

import pytest

from tests.torch_interop.mixed import operators


@pytest.fixture(autouse=True)
def forget(fresh: None) -> None:
    operators.order.clear()
