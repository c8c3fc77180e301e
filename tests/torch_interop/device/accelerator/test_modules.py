"""Modules that move to the device, or from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("make", [nn.LazyLinear, nn.LazyConv1d, nn.LazyBatchNorm1d])
@pytest.mark.parametrize(("source", "target"), [("cpu", "pjrt"), ("pjrt", "cpu")])
def test_lazy_modules(make: Callable[..., nn.Module], source: str, target: str) -> None:
    """They take their shape from the first call, wherever they are by then."""
    arguments = () if make is nn.LazyBatchNorm1d else (4,) if make is nn.LazyLinear else (4, 1)
    module = make(*arguments, device=source).to(target)
    x = torch.randn(2, 3, 5)
    found = module(x.to(target))
    found.sum().backward()
    assert not isinstance(module, nn.modules.lazy.LazyModuleMixin) or not (
        module.has_uninitialized_params()
    )
    for value in module.state_dict().values():
        assert value.device.type == target
    torch.testing.assert_close(found.cpu(), module.to("cpu")(x))


def test_a_lazy_parameter_that_modules_share() -> None:
    pair = nn.ModuleList([nn.LazyLinear(4), nn.LazyLinear(4)])
    pair[1].weight = pair[0].weight
    pair.to("pjrt")
    assert pair[1].weight is pair[0].weight
    pair[0](torch.randn(2, 3).to("pjrt"))
    assert pair[1].weight.shape == (4, 3)
