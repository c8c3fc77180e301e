"""Numbers that a call brings: no value is compiled into a program unless a size is made of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same, compiled

pytestmark = pytest.mark.usefixtures("fresh")

X = torch.tensor([-2.0, -0.0, 3.0, torch.nan])
VALUES = range(2, 14)


def arithmetic(x: torch.Tensor, n: int) -> Any:
    return x + n, x - n, x * n, x / n, n - x, x**n


def of_a_double(x: torch.Tensor, n: int) -> Any:
    return x.double() / (n + 1), x.double() * (0.1 * n)


def of_half_precision(x: torch.Tensor, n: int) -> Any:
    half, brain = x.half(), x.bfloat16()
    return half * (0.1 * n), brain * (0.1 * n), half / n, brain / (n + 0.3), brain > 0.1 * n


def of_integers(x: torch.Tensor, n: int) -> Any:
    small = torch.arange(5, dtype=torch.int8)
    return small + n, small * n, small / n, small > n, torch.tensor(3, dtype=torch.int32) - n


def comparisons(x: torch.Tensor, n: int) -> Any:
    return x == n, x != n, x < n, x <= n, x > n - 3, x >= n - 3


def fillings(x: torch.Tensor, n: int) -> Any:
    return torch.full((2, 3), n), torch.where(x > 0, x, n), torch.full((2,), n, dtype=torch.half)


def results(x: torch.Tensor, n: int) -> Any:
    return x * n, n + 1, torch.tensor(n), max(n - 5, 0)


def no_result_of_the_device(x: torch.Tensor, n: int) -> Any:
    return x.exp(), n * 2


FUNCTIONS = [
    arithmetic,
    of_a_double,
    of_half_precision,
    of_integers,
    comparisons,
    fillings,
    results,
    no_result_of_the_device,
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_one_program_serves_all_values(function: Callable[..., Any]) -> None:
    on_device = compiled(function)
    for value in VALUES:
        found, expected = on_device(X, value), function(X, value)
        assert_same(found, expected, rtol=1e-6, atol=0)
        plain = [item for item in expected if isinstance(item, int)]
        assert [item for item in found if isinstance(item, int)] == plain
    # The first value is compiled as it is; the second tells torch that it changes.
    assert len(compiled_graphs()) == 2


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x + torch.ops.aten.div(n * 2, n - 1),
        lambda x, n: x * torch.ops.aten.div(n * 2, n - 1, rounding_mode="floor"),
        lambda x, n: x * torch.add(n, n - 1),
        lambda x, n: x.bool() & torch.ops.aten.eq(n, n * 2 - 4),
    ],
)
def test_operators_on_two_numbers(function: Callable[..., Any]) -> None:
    for dynamic in (None, True):
        torch._dynamo.reset()
        on_device = torch.compile(function, backend="pjrt", dynamic=dynamic)
        for value in (5, 4, 3.5, 2.5, -2):
            assert_same(on_device(X, value), function(X, value))


def test_numbers_out_of_range_wrap_in_operators_and_fill_no_tensor() -> None:
    def function(x: torch.Tensor, n: int) -> Any:
        return x + n, x * n, x < n, n - x

    def filled(n: int) -> torch.Tensor:
        return torch.full((2,), n, dtype=torch.uint8)

    on_device, filled_on_device = compiled(function), compiled(filled)
    for value in (2, 3, 300, -1, 2**40, 2**63, 0x9E3779B97F4A7C15, 2**64 - 1):
        for dtype in (torch.int8, torch.uint8, torch.int64, torch.float32):
            x = torch.arange(3, dtype=dtype)
            assert_same(on_device(x, value), function(x, value))
    for value in (2, 3, 4):
        assert torch.equal(filled_on_device(value), filled(value))
    with pytest.raises(RuntimeError, match="without overflow"):
        filled_on_device(300)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x + n,
        lambda x, n: n - x.int(),
        lambda x, n: x == n,
        lambda x, n: x.clamp(max=n),
        lambda x, n: torch.where(x, n, x),
        lambda x, n: torch.full_like(x, n),
        lambda x, n: torch.full_like(x, n, dtype=torch.int64),
    ],
)
@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_numbers_beyond_int64_beside_bools_raise_as_in_eager(function: Callable[..., Any]) -> None:
    x = torch.tensor([True, False])
    for dynamic in (None, True):
        torch._dynamo.reset()
        on_device = torch.compile(function, backend="pjrt", dynamic=dynamic)
        for value in (5, 6, 2**63 - 1, 2**63, 2**64 - 1):
            try:
                expected = function(x, value)
            except RuntimeError:
                with pytest.raises(RuntimeError):
                    on_device(x, value)
            else:
                assert_same(on_device(x, value), expected)


@pytest.mark.parametrize("divide", [torch.floor_divide, torch.remainder, torch.fmod])
def test_a_number_that_wraps_to_zero_divides_no_integers(divide: Callable[..., Any]) -> None:
    on_device = compiled(divide)
    x = torch.arange(3, dtype=torch.uint8)
    for zero in (256, 512):
        for value in (2, 3, zero + 1, zero + 3):
            assert torch.equal(on_device(x, value), divide(x, value))
        for function in (divide, on_device):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                function(x, zero)


def test_filled_tensors_have_memory_of_their_own() -> None:
    on_device = compiled(lambda n: torch.full((2, 3), n))
    for value in VALUES:
        found = on_device(value)
        found[0, 0] = -1
        assert found.stride() == (3, 1)
        assert found.flatten().tolist() == [-1, *[value] * 5]


def test_a_number_is_not_rounded_before_it_meets_half_precision() -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    on_device = compiled(function)
    x = torch.tensor([1.0, 3.0], dtype=torch.bfloat16)
    for value in (257, 259, 1001):
        assert torch.equal(on_device(x, value), function(x, value))


EXPONENTS = (1.3, 0.5, -0.5, 0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.50001, -3.0, 2.7)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32], ids=str
)
def test_changing_exponents_take_roots_where_eager_does(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, exponent: float) -> torch.Tensor:
        return x**exponent

    x = torch.tensor([0.0, -2.0, 4.0, 1.0])
    if dtype.is_floating_point:
        x = torch.cat([x, torch.tensor([-0.0, -torch.inf, torch.inf, torch.nan])])
    on_device, x = compiled(function), x.to(dtype)
    for exponent in EXPONENTS:
        found, expected = on_device(x, exponent), function(x, exponent)
        assert_same(found, expected, rtol=1e-2 if dtype is torch.bfloat16 else 1e-3, atol=0)
        signs = [item[~item.isnan()].signbit().tolist() for item in (found, expected)]
        assert signs[0] == signs[1], exponent
    assert len(compiled_graphs()) == 2


def test_gradients_of_changing_exponents() -> None:
    def function(x: torch.Tensor, exponent: float) -> torch.Tensor:
        return x**exponent

    on_device = compiled(function)
    for exponent in (2.5, 1.5, 0.5, -0.5, 2.0, 0.0):
        gradients = []
        for run in (on_device, function):
            x = torch.tensor([0.0, -0.0, 4.0, 0.25], requires_grad=True)
            run(x, exponent).sum().backward()
            gradients.append(x.grad)
        assert_same(*gradients, rtol=1e-5, atol=0)


def test_sizes_are_compiled_and_numbers_beside_them_are_not() -> None:
    def function(x: torch.Tensor, size: int, n: int) -> torch.Tensor:
        return x[:size] * n

    on_device = compiled(function)
    x = torch.randn(8)
    for size, value in [(3, 2), (4, 5), (4, 6), (4, 7), (5, 8), (5, 9)]:
        assert torch.equal(on_device(x, size, value), function(x, size, value))
    # Of the first sizes, and of all sizes.
    assert len(compiled_graphs()) == 2


def test_a_number_that_is_a_size_too_is_compiled() -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        return x[:n] * n

    on_device = compiled(function)
    x = torch.randn(8)
    for value in (2, 3, 4):
        assert torch.equal(on_device(x, value), function(x, value))


def test_gradients_know_the_number_of_their_call() -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        return (x * n).exp() / n

    on_device = compiled(function)
    for value in VALUES:
        expected, found = (torch.ones(3).div(value).requires_grad_() for _ in range(2))
        function(expected, value).sum().backward()
        on_device(found, value).sum().backward()
        torch.testing.assert_close(found.grad, expected.grad)
    assert [graph.kind for graph in compiled_graphs()].count("backward") == 2


def test_what_is_asserted_of_a_number_is_asserted() -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        torch._check(n < 100)
        return x * n

    on_device = compiled(function)
    for value in (2, 3, 4):
        on_device(X, value)
    with pytest.raises(Exception, match="100"):
        on_device(X, 101)


def test_draws_and_numbers_go_together() -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.rand_like(x) + n

    on_device = compiled(function)
    draws = [on_device(torch.zeros(50), value) - value for value in VALUES]
    assert all(draw.min() >= 0 and draw.max() <= 1.0001 for draw in draws)
    assert not torch.allclose(draws[2], draws[3], atol=1e-3)
    assert len(compiled_graphs()) == 2
