"""Programs of torch.export that are no model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.torch_interop import export


class _Transformed(nn.Module):
    """What it takes is wrapped by a transform, which torch.export takes for a constant."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.func.vjp(lambda y: y * 3, x)[0]
        return found


@pytest.mark.parametrize("dynamic_shapes", [None, {"x": {0: Dim.AUTO}}])
def test_a_constant_without_numbers_is_told(dynamic_shapes: Any) -> None:
    x = torch.randn(3, 2)
    program = torch.export.export(_Transformed(), (x,), dynamic_shapes=dynamic_shapes)
    with pytest.raises(NotExportable, match="'lifted_tensor_0': found a tensor that exists only"):
        export(program)
    sizes = [{"x.0": 3}] if dynamic_shapes else None
    with pytest.raises(NotExportable, match="'lifted_tensor_0': found a tensor that exists only"):
        export(_Transformed(), (x,), dynamic_shapes=dynamic_shapes, sizes=sizes)
