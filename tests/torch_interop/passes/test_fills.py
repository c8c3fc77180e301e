"""Filled tensors keep nothing of the tensors that they are like."""

import pytest
import torch

from tests.torch_interop.helpers import compiled

pytestmark = pytest.mark.usefixtures("fresh")


def test_a_result_that_backward_does_not_read_may_be_written_into() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.func.grad_and_value(lambda a: (a**2).mean())(x.clone())

    found = torch.arange(3.0).requires_grad_()
    gradient, value = compiled(function)(found)
    value.add_(-1.5)
    (gradient.sum() + value).backward()

    expected = torch.arange(3.0).requires_grad_()
    gradient, value = function(expected)
    (gradient.sum() + value).backward()
    torch.testing.assert_close(found.grad, expected.grad)


def test_filled_tensors_are_those_of_eager() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        likes = (torch.full_like(y, 2), torch.ones_like(y.T), torch.zeros_like(x, dtype=torch.int8))
        return (x * likes[0] * likes[1].T, *likes)

    x, y = torch.randn(2, 3, requires_grad=True), torch.randn(3, 2).T
    for found, expected in zip(compiled(function)(x, y), function(x, y), strict=True):
        torch.testing.assert_close(found, expected, check_stride=True)
