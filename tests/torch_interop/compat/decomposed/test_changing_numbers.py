"""Sums with a number that changes and a factor: torch forgets the factor where it lifts numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import compiled

pytestmark = pytest.mark.usefixtures("fresh")

NUMBERS = (1.25, 2.5, -0.75, 4.0)
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "add": lambda x, number, alpha: torch.add(x, number, alpha=alpha),
    "sub": lambda x, number, alpha: torch.sub(x, number, alpha=alpha),
    "rsub": lambda x, number, alpha: torch.rsub(x, number, alpha=alpha),
    "add_": lambda x, number, alpha: x.clone().add_(number, alpha=alpha),
    "sub_": lambda x, number, alpha: x.clone().sub_(number, alpha=alpha),
}
OF_INTEGERS = ("add", "sub", "rsub")
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int32,
    torch.uint8,
)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in FUNCTIONS
        for dtype in DTYPES
        # Sums with a fraction are not written into integers.
        if dtype.is_floating_point or dtype.is_complex or name in OF_INTEGERS
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(3,), ()], ids=str)
def test_the_factor_is_kept(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.arange(3).to(dtype) if shape else torch.tensor(3).to(dtype)
    for alpha in (2, -3, 0.5):

        def function(x: Tensor, number: float, alpha: float = alpha) -> Tensor:
            return FUNCTIONS[name](x, number, alpha)

        before = len(compiled_graphs())
        on_device = compiled(function)
        for number in NUMBERS:
            found, expected = on_device(x, number), function(x, number)
            torch.testing.assert_close(found, expected)
        # Of the first number, and of all; torch lifts none beside complex numbers.
        graphs = len(compiled_graphs()) - before
        assert graphs <= (len(NUMBERS) if dtype.is_complex else 2)


def test_a_factor_that_changes_beside_the_number() -> None:
    def function(x: Tensor, number: float, alpha: float) -> Tensor:
        return torch.add(x, number, alpha=alpha) - torch.rsub(x, number, alpha=alpha)

    x = torch.randn(5)
    on_device = compiled(function)
    for number, alpha in zip(NUMBERS, (0.5, 3.0, -2.0, 1.5), strict=True):
        torch.testing.assert_close(on_device(x, number, alpha), function(x, number, alpha))
    assert len(compiled_graphs()) <= 2


def test_differences_of_bools_are_refused_as_by_pytorch() -> None:
    x = torch.tensor([True, False])
    on_device = torch.compile(lambda x, number: torch.rsub(x, number, alpha=2), backend="pjrt")
    for number in NUMBERS[:2]:
        with pytest.raises(RuntimeError, match="bool"):
            on_device(x, number)
