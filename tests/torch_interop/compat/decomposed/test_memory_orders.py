"""Results lie in memory as those of PyTorch do where torch's rules promise another order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

ARGUMENTS = {
    "transposed": lambda: torch.randn(2, 5, 3).transpose(1, 2),
    "channels-last": lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "part": lambda: torch.randn(2, 3, 8, 8)[:, :, ::2, ::2],
    "transposed-image": lambda: torch.randn(2, 3, 4, 5).transpose(2, 3),
    "contiguous": lambda: torch.randn(2, 3, 4),
}


def normalized(x: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, training=True)


def scaled(x: Tensor) -> Tensor:
    mean, variance = (torch.full((3,), value, device=x.device) for value in (0.5, 2.0))
    return functional.batch_norm(x, mean, variance)


def power(x: Tensor) -> Tensor:
    return 2.0**x


def float_power(x: Tensor) -> Tensor:
    return torch.float_power(2, x)


def refilled(x: Tensor) -> Tensor:
    image = x.unsqueeze(3) if x.dim() == 3 else x
    pooled, places = functional.max_pool2d(image, 1, return_indices=True)
    return functional.max_unpool2d(pooled, places, 1)


def divided(x: Tensor) -> Tensor:
    return torch.div(x, torch.tensor(2.0, device=x.device), rounding_mode="floor")


def divided_by_rows(x: Tensor) -> Tensor:
    return torch.floor_divide(x, torch.full((x.shape[-1],), 2.0, device=x.device))


def signed(x: Tensor) -> Tensor:
    return torch.copysign(x, -2.0)


def signed_by_one(x: Tensor) -> Tensor:
    return torch.copysign(x, torch.tensor(-2.0, device=x.device))


def logarithm_of_sums(x: Tensor) -> Tensor:
    return torch.logaddexp(torch.tensor(1.0, device=x.device), x)


def both(x: Tensor) -> Tensor:
    return torch.logical_and(torch.tensor(True, device=x.device), x)


def product_added(x: Tensor) -> Tensor:
    added = x[:, 0] if x.dim() == 4 else x
    wide, high = added.shape[-1], added.shape[-2]
    factors = [torch.ones(2, *sizes, device=x.device) for sizes in ((high, 3), (3, wide))]
    return torch.baddbmm(added, *factors)


def rolled(x: Tensor) -> Tensor:
    return x.roll(1, 1)


def rolled_along_two(x: Tensor) -> Tensor:
    return x.roll((1, -2), (1, -1))


def rolled_by_nothing(x: Tensor) -> Tensor:
    return x.roll((1, 0), (-1, 1))


def turned(x: Tensor) -> Tensor:
    return torch.angle(torch.complex(x, x))


def angle(x: Tensor) -> Tensor:
    return torch.angle(x)


BROADCASTING = (divided, divided_by_rows, signed, signed_by_one, logarithm_of_sums, both)
FUNCTIONS = (
    product_added,
    *BROADCASTING,
    normalized,
    scaled,
    power,
    float_power,
    functional.logsigmoid,
    refilled,
    rolled,
    rolled_along_two,
    rolled_by_nothing,
    turned,
    angle,
)


def drawn(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.normal(0.0, x.abs()), torch.normal(x, x.abs())


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_lie_as_those_of_pytorch(
    function: Callable[[Tensor], Tensor], argument: str, dynamic: bool
) -> None:
    x = ARGUMENTS[argument]()
    expected = function(x)
    found = torch.compile(function, backend="pjrt", dynamic=dynamic)(x)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_samples_lie_as_those_of_pytorch(argument: str) -> None:
    x = ARGUMENTS[argument]()
    found = torch.compile(drawn, backend="pjrt")(x)
    assert [item.stride() for item in found] == [item.stride() for item in drawn(x)]


@pytest.mark.parametrize("function", [normalized, scaled])
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_gradients_of_normalized_tensors_lie_as_those_of_pytorch(
    function: Callable[[Tensor], Tensor], argument: str
) -> None:
    x = ARGUMENTS[argument]().requires_grad_()
    found, expected = (
        torch.autograd.grad(called(x).square().sum(), x)[0]
        for called in (torch.compile(function, backend="pjrt"), function)
    )
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_results_lie_so_on_the_device(
    function: Callable[[Tensor], Tensor], argument: str, pjrt_device: None
) -> None:
    x = ARGUMENTS[argument]()
    expected, found = function(x), function(x.to("pjrt"))
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("argument", ["transposed", "channels-last", "contiguous"])
def test_gradients_lie_so_on_the_device(argument: str, pjrt_device: None) -> None:
    x = ARGUMENTS[argument]()
    found, expected = (
        torch.autograd.grad(normalized(item).square().sum(), item)[0]
        for item in (x.to("pjrt").requires_grad_(), x.requires_grad_())
    )
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_powers_of_changing_numbers_lie_so(pjrt_device: None) -> None:
    x = ARGUMENTS["transposed"]()
    compiled = torch.compile(lambda base, x: base**x, backend="pjrt")
    for base in (0.5, 2.5, 3.5, 4.5, 5.5):
        expected = base**x
        for found in (compiled(base, x), base ** x.to("pjrt")):
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found.cpu(), expected)
