"""Pooling of values that do not lie row-major: it takes place in the order in which they lie."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

POOLS = {
    "maximum": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "maximum with positions": lambda x: functional.max_pool2d(x, (2, 3), return_indices=True)[0],
    "average": lambda x: functional.avg_pool2d(x, (3, 2), 2, 1, ceil_mode=True),
    "average of windows that overlap a lot": lambda x: functional.avg_pool2d(x, 5, 1, 2),
}


def of_order(order: tuple[int, ...], sizes: tuple[int, ...] = (2, 3, 9, 8)) -> Tensor:
    """Data of some sizes, whose dimensions are to be put in an order to get those sizes."""
    torch.manual_seed(0)
    return torch.randn([sizes[order.index(dim)] for dim in range(len(order))])


def agrees(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Compare the results and the gradients of a function with eager's."""
    torch.compiler.reset()
    compiled = torch.compile(function, backend="pjrt", fullgraph=True)
    mine, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = compiled(mine), function(eager)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    found.backward(weights)
    expected.backward(weights)
    torch.testing.assert_close(mine.grad, eager.grad)


@pytest.mark.parametrize("pool", POOLS.values(), ids=list(POOLS))
@pytest.mark.parametrize("order", [(0, 3, 1, 2), (0, 3, 2, 1), (3, 1, 2, 0), (0, 2, 1, 3)])
def test_pools_of_data_in_another_order(
    pool: Callable[[Tensor], Tensor], order: tuple[int, ...]
) -> None:
    agrees(lambda x: pool(x.permute(order) * 2), of_order(order))


def test_data_without_a_batch_and_of_three_dimensions() -> None:
    agrees(lambda x: functional.max_pool2d(x.permute(2, 0, 1) * 2, 3, 2, 1), torch.randn(9, 8, 3))
    order = (0, 4, 1, 2, 3)
    x = of_order(order, (2, 3, 5, 6, 4))
    agrees(lambda x: functional.max_pool3d(x.permute(order) * 2, 3, 2, 1), x)
    agrees(lambda x: functional.avg_pool3d(x.permute(order) * 2, 2), x)


def test_half_precision_after_a_convolution() -> None:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1)
    ).bfloat16()
    x = torch.randn(2, 3, 19, 18).bfloat16()
    torch.testing.assert_close(torch.compile(net, backend="pjrt")(x), net(x))
