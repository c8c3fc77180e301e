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


@pytest.mark.parametrize(("source", "target"), [("cpu", "pjrt"), ("pjrt", "cpu"), ("pjrt", "pjrt")])
def test_the_state_of_a_lazy_module_that_was_not_called(source: str, target: str) -> None:
    saved, module = nn.LazyLinear(4, device=source), nn.LazyLinear(3, device=target)
    module.load_state_dict(saved.state_dict())
    assert module.has_uninitialized_params()
    module.load_state_dict(nn.Linear(2, 3, device=source).state_dict())
    assert module.weight.shape == (3, 2)
    assert module.weight.device.type == target


def test_a_lazy_parameter_that_modules_share() -> None:
    pair = nn.ModuleList([nn.LazyLinear(4), nn.LazyLinear(4)])
    pair[1].weight = pair[0].weight
    pair.to("pjrt")
    assert pair[1].weight is pair[0].weight
    pair[0](torch.randn(2, 3).to("pjrt"))
    assert pair[1].weight.shape == (4, 3)


@pytest.mark.parametrize(("source", "target"), [("cpu", "pjrt"), ("pjrt", "cpu")])
def test_data_from_elsewhere(source: str, target: str) -> None:
    """A parameter is given other memory, as FSDP of flat parameters does to save them."""
    weight = nn.Parameter(torch.ones(3, device=source))
    (weight * 2).sum().backward()
    weight.grad = None
    weight.data = torch.arange(3.0).to(target)
    assert weight.device.type == target
    (weight * weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.device.type == target
    assert weight.grad.tolist() == [0.0, 2.0, 4.0]
    weight.grad = None
    weight.data = torch.ones(2, device=source)
    assert (weight + 1).tolist() == [2.0, 2.0]


def test_a_module_moves_while_a_graph_refers_to_its_parameters() -> None:
    module = nn.Linear(2, 2)
    weight = module.weight
    graph = module(torch.ones(1, 2)).sum()
    module.to("pjrt")
    assert module.weight is weight
    assert weight.device.type == "pjrt"
    del graph
    module(torch.ones(1, 2, device="pjrt")).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]
