"""Guards on where arguments lie in their storages."""

from __future__ import annotations

import torch


def test_floats_that_change_have_no_offset() -> None:
    """Dynamo gives them to the graph as tensors."""

    def window(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x.as_strided((2, 2), (1, 1), 1) * factor

    compiled = torch.compile(window, backend="pjrt", dynamic=True)
    x = torch.randn(8)
    for factor in (1.5, 2.5, 4.25):
        torch.testing.assert_close(compiled(x, factor), window(x, factor))
