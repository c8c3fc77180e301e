"""Strides that change while sizes do not: calls share programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs

pytestmark = pytest.mark.usefixtures("fresh")

LENGTHS = (6, 9, 7, 12, 13, 14, 8, 20)


def slices(length: int) -> torch.Tensor:
    """Five rows of each of two groups of `length`."""
    return torch.randn(2, length, 8)[:, :5]


def turned(length: int) -> torch.Tensor:
    return torch.randn(8, length).T[1:6].T


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "concatenation": lambda x: torch.cat([x, x.sin()], -1),
    "elementwise": lambda x: x.exp() * 2,
    "product": lambda x: x @ x.transpose(-1, -2),
    "reshaping": lambda x: x.reshape(-1, 4).sum(0),
}


@pytest.mark.parametrize("make", [slices, turned])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_share_programs(make: Callable[[int], torch.Tensor], name: str) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="pjrt")
    for length in LENGTHS:
        x = make(length)
        expected, found = function(x), compiled(x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
    assert len(compiled_graphs()) <= 2


def test_sizes_that_change_as_well_are_padded() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.cat([x, y], 1), -1)

    compiled = torch.compile(function, backend="pjrt")
    for length in LENGTHS:
        x, y = slices(length), torch.randn(2, 30 - length, 8)
        torch.testing.assert_close(compiled(x, y), function(x, y))
    assert len(compiled_graphs()) <= 3


def test_orders_of_dimensions_stay_apart() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="pjrt")
    for length in LENGTHS[:4]:
        whole = torch.randn(length, length)
        for x in (whole[:5, :5], whole.t()[:5, :5], whole[:5, :5].contiguous()):
            torch.testing.assert_close(compiled(x), x * 2)
            assert compiled(x).stride() == (x * 2).stride()
    assert len(compiled_graphs()) <= 4


def test_views_of_such_arguments_share_their_memory() -> None:
    compiled = torch.compile(lambda x: (x.transpose(0, 1), x + 1), backend="pjrt")
    for length in LENGTHS[:4]:
        x = slices(length)
        view, more = compiled(x)
        assert view.data_ptr() == x.data_ptr()
        assert view.stride() == x.transpose(0, 1).stride()
        torch.testing.assert_close(more, x + 1)


def test_writes_reach_the_argument() -> None:
    compiled = torch.compile(lambda x: x.mul_(2).sum(), backend="pjrt")
    for length in LENGTHS[:4]:
        whole = torch.randn(2, length, 8)
        expected = whole.clone()
        expected[:, :5] *= 2
        torch.testing.assert_close(compiled(whole[:, :5]), expected[:, :5].sum())
        torch.testing.assert_close(whole, expected)


def test_gradients() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (torch.cat([x, x.sin()], -1) ** 2).sum()

    compiled = torch.compile(function, backend="pjrt")
    for length in LENGTHS:
        x = slices(length).requires_grad_()
        (expected,) = torch.autograd.grad(function(x), x)
        (found,) = torch.autograd.grad(compiled(x), x)
        torch.testing.assert_close(found, expected)
