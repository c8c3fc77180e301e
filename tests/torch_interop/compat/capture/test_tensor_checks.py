"""Checks of tensors stay in the graph, and raise what they raise elsewhere."""

from __future__ import annotations

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import compiled

pytestmark = pytest.mark.usefixtures("fresh")


def check(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    torch._check_tensor_all(places.sum() * x.shape[-1] == x.numel())
    return x.exp()


def test_a_check_ends_no_graph() -> None:
    run = compiled(check, fallback="error")
    for rows in range(2, 20):
        x, places = torch.rand(rows, 3), torch.ones(rows, dtype=torch.bool)
        torch.testing.assert_close(run(x, places), check(x, places))
        with pytest.raises(RuntimeError) as expected:
            check(x, ~places)
        with pytest.raises(RuntimeError) as found:
            run(x, ~places)
        assert str(found.value) == str(expected.value)
    assert len(compiled_graphs()) <= 4
