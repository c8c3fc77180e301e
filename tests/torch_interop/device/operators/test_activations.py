"""Gradients of activations that were written over their arguments."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")

NEGATIVE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "leaky relu": lambda x: functional.leaky_relu_(x, -2.0),
    "elu": lambda x: functional.elu_(x, -2.0),
    "celu": lambda x: functional.celu_(x, -2.0),
    "rrelu": lambda x: functional.rrelu_(x, -5.0, 1.0),
}

OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "leaky relu": lambda x: functional.leaky_relu_(x, 0.25),
    "leaky relu, not in place": lambda x: functional.leaky_relu(x, -2.0),
    "elu": lambda x: functional.elu_(x, 2.0),
    "elu, not in place": lambda x: functional.elu(x, -2.0),
    "celu": lambda x: functional.celu_(x, 2.0),
    "rrelu": lambda x: functional.rrelu_(x, 0.5, 1.0),
    "rrelu, not in place": lambda x: functional.rrelu(x, -5.0, 1.0),
}


def gradient(function: Callable[[torch.Tensor], torch.Tensor], device: str) -> torch.Tensor:
    x = torch.tensor([-1.0, 1.0, -0.5], device=device, requires_grad=True)
    function(x.clone()).sum().backward()
    assert x.grad is not None
    return x.grad.cpu()


@pytest.mark.parametrize("name", NEGATIVE)
def test_a_result_of_a_negative_slope_has_no_gradient(name: str) -> None:
    with pytest.raises(RuntimeError, match="call out-of-place version"):
        gradient(NEGATIVE[name], "pjrt")


@pytest.mark.parametrize("name", OTHERS)
def test_other_gradients_are_those_of_the_host(name: str) -> None:
    torch.testing.assert_close(gradient(OTHERS[name], "pjrt"), gradient(OTHERS[name], "cpu"))
