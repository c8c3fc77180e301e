"""Transposed results, with which XLA's CPU compiler is not at ease."""

import pytest
import torch

from tests.torch_interop.helpers import assert_same

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)], ids=str)
def test_a_product_that_is_returned_transposed_more_than_once(lead: tuple[int, ...]) -> None:
    """A batched one ended the process."""

    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = a @ b
        return product.mT.contiguous(), product.transpose(-1, -2).clone(
            memory_format=torch.contiguous_format
        )

    a, b = torch.randn(*lead, 3, 3), torch.randn(*lead, 3, 4)
    assert_same(torch.compile(function, backend="pjrt")(a, b), function(a, b))


def test_a_system_that_is_solved_and_saved_for_backward() -> None:
    factors, pivots = torch.linalg.lu_factor(torch.randn(2, 3, 3) + 3 * torch.eye(3))
    right = [torch.randn(2, 3, 4).requires_grad_() for _ in range(2)]
    right[1].data = right[0].data.clone()
    solve = torch.compile(
        lambda b: torch.linalg.lu_solve(factors.requires_grad_(), pivots, b), backend="pjrt"
    )
    found, expected = solve(right[0]), torch.linalg.lu_solve(factors, pivots, right[1])
    assert_same(found, expected)
    found.sum().backward()
    expected.sum().backward()
    assert_same(right[0].grad, right[1].grad)
