"""Operators that address storages run on the device, whatever views they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same, compiled, leaves

pytestmark = pytest.mark.usefixtures("fresh")


def overlapping_windows(x: torch.Tensor) -> torch.Tensor:
    """As models with sliding windows make them, of heads that lie between the positions."""
    batch, length, heads, width = x.shape
    y = (x * 2).view(length, batch, heads, width).transpose(0, 1).transpose(1, 2)
    y = y.reshape(batch * heads, length, width)
    y = y.view(y.size(0), y.size(1) // 4, 4, y.size(2))
    size, stride = [*y.size()], [*y.stride()]
    size[1] = size[1] * 2 - 1
    stride[1] //= 2
    return y.as_strided(size=size, stride=stride).sin()


def beside_the_view(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = (x * 2)[1:, :, 1]
    return rows.as_strided((2, 3), (1, 2)) * 3, rows.as_strided((2, 3), (1, 2), 3) * 3


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).contiguous(memory_format=torch.channels_last).as_strided((3, 4), (5, 1)) + 1


def put_into_a_transpose(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (x * 2).transpose(0, 1)
    made = torch.as_strided_scatter(y, x[0, :3, :2, 1].exp(), (3, 2), (5, 2), 1)
    return made * 2, made.as_strided((4,), (1,), 2) * 3


FUNCTIONS = (overlapping_windows, beside_the_view, channels_last)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_views_of_computed_values(function: Callable[..., Any]) -> None:
    x = torch.randn(2, 8, 3, 4, requires_grad=True)
    results = []
    for run in (compiled(function), function):
        found = leaves(run(x))
        loss = torch.stack([item.square().sum() for item in found]).sum()
        results.append([*found, *torch.autograd.grad(loss, x)])
    assert_same(results[0], results[1])
    assert {graph.kind for graph in compiled_graphs()} == {"forward", "backward"}
    assert not [graph.fallback_reasons for graph in compiled_graphs() if graph.fallback_reasons]


def of_an_argument(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1)[1:].as_strided((4, 2), (2, 1), 3) + 1


@pytest.mark.parametrize("function", [put_into_a_transpose, of_an_argument])
def test_without_gradients(function: Callable[..., Any]) -> None:
    """PyTorch computes gradients of `as_strided_scatter` of row-major tensors only."""
    x = torch.randn(2, 8, 3, 4)
    assert_same(compiled(function)(x), function(x))
    assert not compiled_graphs()[0].fallback_reasons


TYPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "shorter": lambda x: x.view(torch.int16).as_strided((3, 3), (1, 1), 0) + 0,
    "shorter, of what is computed": lambda x: (x + 1).view(torch.int16).as_strided((4,), (2,)) + 0,
    "longer": lambda x: x[:4].view(torch.float64).as_strided((1,), (1,), 0) * 2,
    "longer, of an odd number": lambda x: (
        (x + 1)[:4].view(torch.float64).as_strided((2,), (1,)) * 2
    ),
    "part": lambda x: x.view(torch.int16)[2:].as_strided((3,), (2,), 1) + 0,
    "bytes beyond": lambda x: x.view(torch.uint8)[3:].as_strided((4, 2), (2, 3), 2) + 0,
    "parts of complex numbers": lambda x: (
        torch.view_as_real(torch.complex(x, -x)).as_strided((3,), (3,), 1) + 0
    ),
    "complex numbers": lambda x: (
        torch.view_as_complex((x + 1)[:4].view(2, 2)).as_strided((2,), (1,)) * 2
    ),
    "written": lambda x: (
        (x + 1)
        .view(torch.int16)
        .as_strided_scatter(torch.ones(2, dtype=torch.int16), (2,), (3,), 1)
    ),
}


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("name", TYPES)
def test_views_of_another_element_type(name: str, first: int) -> None:
    """Strides count elements of the view; of a part of a tensor its storage has others, too."""
    x = torch.arange(12.0)[first : first + 5]
    # What lies around an argument is not on the device.
    function = TYPES[name]
    found = compiled(function, **({"fallback": "host"} if first else {}))(x)
    assert_same(found, function(x))
