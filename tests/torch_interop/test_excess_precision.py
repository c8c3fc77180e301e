"""Half precision: rounded where a chain of operators ends, or after each operator as in eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pjrt_bridge.errors import OptionError
from pjrt_bridge.torch_interop.options import BackendOptions

HALVES = [torch.bfloat16, torch.float16]
Function = Callable[..., torch.Tensor]


def compiled(function: Function, *, excess_precision: bool = True) -> Function:
    options = {"excess_precision": excess_precision, "fallback": "error"}
    return torch.compile(function, backend="pjrt", options=options)


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a = x * y + x
    b = torch.where(x > 0, a * y - x, -a)
    c = torch.relu(b) + b.abs().tanh()
    return torch.sigmoid(c * 0.5).addcmul(a, b, value=0.125)


@pytest.fixture
def sides() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(64, 100), torch.randn(64, 100)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_chain_is_rounded_once(
    dtype: torch.dtype, sides: tuple[torch.Tensor, torch.Tensor]
) -> None:
    x, y = (side.to(dtype) for side in sides)
    exact = chain(x.double(), y.double())
    found = compiled(chain)(x, y)
    assert found.dtype == dtype
    # Half a step of the element type, and what float32 adds to it.
    limit = (0.5 + 2.0**-6) * torch.finfo(dtype).eps * exact.abs() + 1e-6
    assert ((found.double() - exact).abs() <= limit).all()
    assert not ((chain(x, y).double() - exact).abs() <= limit).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_without_it_each_operator_rounds_as_in_eager(
    dtype: torch.dtype, sides: tuple[torch.Tensor, torch.Tensor]
) -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = x * y + x
        return torch.where(x > 0, a * y - x, -a).relu() + a.abs()

    x, y = (side.to(dtype) for side in sides)
    expected, found = run(x, y), compiled(run, excess_precision=False)(x, y)
    if dtype is torch.float16 and "avx512_fp16" in Path("/proc/cpuinfo").read_text():
        # XLA's CPU compiler makes one instruction of a product and a sum, as it does in float32.
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=5e-3)
    else:
        assert torch.equal(found, expected)
    assert not torch.equal(compiled(run)(x, y), expected)


@pytest.mark.parametrize("excess_precision", [True, False])
@pytest.mark.parametrize("dtype", HALVES)
def test_what_a_program_rounds_itself_is_rounded(
    excess_precision: bool, dtype: torch.dtype, sides: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """As where a number is split into a high and a low half."""

    def low(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        product = x * y
        high = product.to(dtype)
        return product - high.float() + high * 0

    assert torch.equal(compiled(low, excess_precision=excess_precision)(*sides), low(*sides))


def test_what_an_operator_rounds_may_be_widened(
    sides: tuple[torch.Tensor, torch.Tensor],
) -> None:
    x, y = (side.bfloat16() for side in sides)
    found = compiled(lambda x, y: (x * y).float())(x, y)
    assert torch.equal(found, x.float() * y.float())


def test_a_copy_rounds(sides: tuple[torch.Tensor, torch.Tensor]) -> None:
    def low(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        product = x * y
        high = torch.empty_like(x, dtype=torch.bfloat16)
        high.copy_(product)
        return product - high

    assert torch.equal(compiled(low)(*sides), low(*sides))


def test_exponents_round() -> None:
    """Of a negative number only a power by an integer is a number."""
    x = torch.tensor([-1.5, -2.25, 3.0]).bfloat16()
    exponent = torch.tensor([-0.00390625, 0.001953125, 2.5]).bfloat16()
    run = lambda x, y: x.pow(y - 1)  # noqa: E731
    expected = run(x, exponent)
    assert expected.isfinite().all()
    assert torch.equal(compiled(run)(x, exponent), expected)


def test_nothing_between_overflows() -> None:
    x = torch.tensor([60000.0, 3.0]).half()
    run = lambda x: (x * 2) / 4  # noqa: E731
    assert torch.equal(compiled(run)(x), torch.tensor([30000.0, 1.5]).half())
    assert torch.equal(compiled(run, excess_precision=False)(x), run(x))


@pytest.mark.parametrize("dtype", HALVES)
def test_results_are_what_others_read(dtype: torch.dtype) -> None:
    """A result that the same graph computes on with is rounded for whoever is outside."""
    x = torch.randn(1000).to(dtype)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = x * 1.1
        return a, a * x

    first, second = torch.compile(run, backend="pjrt")(x)
    assert torch.equal(first, x * 1.1)
    assert torch.equal(second, (x.float() * 1.1 * x.float()).to(dtype))


def test_gradients(sides: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = (side.bfloat16().requires_grad_() for side in sides)
    exact = [side.detach().double().requires_grad_() for side in (x, y)]
    wanted = torch.autograd.grad(chain(*exact).sum(), exact)
    found = torch.autograd.grad(compiled(chain)(x, y).sum(), (x, y))
    for left, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(left.double(), right, rtol=2.0**-6, atol=2.0**-6)


def test_graphs_within_operators() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 1.1
        return torch.cond(x.sum() > 0, lambda x, y: x * y, lambda x, y: x / y, (x, y))

    x = torch.rand(50).bfloat16()
    exact = (x.float() * (x.float() * 1.1)).bfloat16()
    assert torch.equal(compiled(run)(x), exact)
    assert torch.equal(compiled(run, excess_precision=False)(x), run(x))


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_another_value_is_an_error(value: object) -> None:
    with pytest.raises(OptionError, match=f"excess_precision: found {value!r}, expected True"):
        BackendOptions.parse({"excess_precision": value}, None)
