"""Assertions on values: they end no device program, and raise what eager raises."""

from collections.abc import Callable

import pytest
import torch

from tests.torch_interop.helpers import compiled, placements

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning"),
]

SINGULAR = torch.zeros(2, 3, 3)
REGULAR = torch.eye(3).expand(2, 3, 3) + 1


def inverse(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(x * 2).sum(-1)


def factor(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.cholesky(x)


def solution(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.solve(x, x[0]) + 1


def assertion(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x.diagonal(dim1=-2, dim2=-1) > 0).all(), "the diagonal must be positive")
    return x.exp()


def two_checks(x: torch.Tensor) -> torch.Tensor:
    y = torch.linalg.inv(x)
    torch._assert_async((y.sum() < 100), "too large")
    return torch.linalg.inv(y)


FUNCTIONS = [inverse, factor, solution, assertion, two_checks]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_checks_stay_with_the_program_and_raise_as_eager_does(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    on_device = compiled(function, fallback="error")
    torch.testing.assert_close(on_device(REGULAR), function(REGULAR))
    assert placements() == ["device"]

    with pytest.raises(RuntimeError) as expected:
        function(SINGULAR)
    with pytest.raises(type(expected.value)) as found:
        on_device(SINGULAR)
    assert str(found.value) == str(expected.value)

    torch.testing.assert_close(on_device(REGULAR), function(REGULAR))


def test_a_number_that_only_a_check_asks_for_divides_nothing() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._check(bool((x > 0).all()), lambda: "positive, please")
        return x.log()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        on_device = compiled(function, fallback="error")
        torch.testing.assert_close(on_device(REGULAR), function(REGULAR))
        assert placements() == ["device"]
        with pytest.raises(RuntimeError):
            on_device(SINGULAR)


def test_a_number_that_others_need_too_is_made_where_they_are() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        size = n.item()
        torch._check(size >= 2)
        return x.exp().sum() + torch.ones(size)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        on_device = compiled(function, fallback="host")
        n = torch.tensor(4)
        torch.testing.assert_close(on_device(REGULAR, n), function(REGULAR, n))
        assert "host" in placements()
        with pytest.raises(RuntimeError):
            on_device(REGULAR, torch.tensor(1))


def test_gradients_pass_a_check() -> None:
    on_device = compiled(inverse, fallback="error")
    expected, found = (REGULAR.clone().requires_grad_() for _ in range(2))
    inverse(expected).sum().backward()
    on_device(found).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)
    assert set(placements()) == {"device"}


def test_attention_draws_nothing_and_keeps_no_check() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        rotated = torch.linalg.solve(x + 2, x)[:, None]
        return torch.nn.functional.scaled_dot_product_attention(rotated, rotated, rotated)

    on_device = compiled(function, fallback="error")
    expected, found = (REGULAR.clone().requires_grad_() for _ in range(2))
    function(expected).square().sum().backward()
    on_device(found).square().sum().backward()
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(on_device(REGULAR), function(REGULAR), rtol=1e-4, atol=1e-5)
    assert set(placements()) == {"device"}


def test_an_argument_keeps_its_value_where_a_check_before_the_write_raises() -> None:
    def function(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.inv(x)
        total += 1
        return y

    on_device = compiled(function, fallback="host")
    total = torch.zeros(2)
    on_device(REGULAR, total)
    assert total.tolist() == [1, 1]
    with pytest.raises(torch.linalg.LinAlgError):
        on_device(SINGULAR, total)
    assert total.tolist() == [1, 1]
