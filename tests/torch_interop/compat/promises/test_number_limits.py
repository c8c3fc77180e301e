"""Numbers that change from call to call are refused where eager refuses them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.torch_interop.helpers import compiled

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning"),
]

INTEGERS = {
    "clamp": lambda x, n: torch.clamp(x, n),
    "clamp in place": lambda x, n: x.clone().clamp_(max=n),
    "hardtanh": lambda x, n: functional.hardtanh(x, -n, n),
    "add with alpha": lambda x, n: torch.add(x, x, alpha=n),
    "threshold": lambda x, n: functional.threshold(x, 1, n),
    "full": lambda x, n: torch.full((3,), n, dtype=x.dtype),
    "full like": lambda x, n: torch.full_like(x, n),
    "fill in place": lambda x, n: x.clone().fill_(n),
    "masked fill": lambda x, n: x.masked_fill(x > 0, n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "remainder": lambda x, n: x % n,
    "scatter": lambda x, n: x.scatter(0, torch.tensor([0]), n),
}
FLOATS = INTEGERS | {
    "leaky ReLU": lambda x, n: functional.leaky_relu(x, n),
    "ELU": lambda x, n: functional.elu(x, n),
    "power": lambda x, n: torch.pow(x, n),
    "lerp": lambda x, n: torch.lerp(x, x, n),
    "sum by another number": lambda x, n: torch.add(x * n, x, alpha=n * n),
}
CASES = [
    *((name, torch.int8, (3, 100, 200, 5)) for name in INTEGERS),
    *((name, torch.float16, (0.5, 0.25, 1e5, 2.0)) for name in FLOATS),
    ("clamp", torch.int32, (3, 2**30, 2**40)),
    ("full", torch.uint8, (3, -7, 300)),
    ("add with alpha", torch.uint8, (3, -7, 300)),
    ("clamp", torch.float32, (0.5, 0.25, -1e39)),
    ("remainder", torch.int8, (3, 255, 256)),
]


@pytest.mark.parametrize(("name", "dtype", "numbers"), CASES, ids=str)
def test_a_number_out_of_range_raises_as_in_eager(
    name: str, dtype: torch.dtype, numbers: tuple[float, ...]
) -> None:
    function: Callable[..., Any] = FLOATS[name]
    call = compiled(function, fallback="host")
    x = torch.tensor([1, 0, 2]).to(dtype)
    for number in numbers:
        expected, found = _outcome(function, x, number), _outcome(call, x, number)
        if isinstance(expected, str):
            assert found == expected, number
        else:
            torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-2, atol=1e-3)


def test_numbers_within_range_share_a_graph() -> None:
    call = compiled(lambda x, n: torch.clamp(x, n) + torch.add(x, x, alpha=n))
    x = torch.ones(3, dtype=torch.float16)
    for number in (0.5, 0.25):
        call(x, number)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for number in (3.0, -7.5, 65504.0):
            expected = torch.clamp(x, number) + torch.add(x, x, alpha=number)
            torch.testing.assert_close(call(x, number), expected)


def _outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except RuntimeError as error:
        return str(error).splitlines()[0]


def test_the_sign_of_a_number_matters_to_some() -> None:
    call = compiled(functional.softshrink, fallback="host")
    x = torch.tensor([1.0, -2.0])
    for number in (0.5, 0.25):
        torch.testing.assert_close(call(x, number), functional.softshrink(x, number))
    with pytest.raises(RuntimeError):
        call(x, -0.5)
