"""Tensors of every kind at the border between device and host parts; modes around calls."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.torch_interop.helpers import assert_same
from tests.torch_interop.mixed import operators as ops
from tests.torch_interop.mixed.support import check, device_segments, mixed

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")

DTYPES = [
    torch.bfloat16,
    torch.float64,
    torch.complex64,
    torch.int8,
    torch.int64,
    torch.bool,
]


def there_and_back(x: Tensor) -> Any:
    """To the host and to the device again; returned from both."""
    y = x.flip(0)
    z = ops.noted(y, "a")
    return torch.cat([z, x]), z, y, ops.noted(z.flip(0), "b")


@pytest.mark.parametrize("dtype", DTYPES)
def test_element_types(dtype: torch.dtype) -> None:
    x = torch.randint(-3, 4, (4, 3)).to(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        x = x / 7
    check(there_and_back, x, segments=2)


@pytest.mark.parametrize("shape", [(), (3, 0, 2), (1,)])
def test_shapes(shape: tuple[int, ...]) -> None:
    def function(x: Tensor) -> Any:
        y = ops.twice(x.exp())
        return y.cos(), y.sum(), ops.twice(y.sum()) + x, x.reshape(-1)

    # So few elements are worth no launch.
    check(function, torch.randn(shape), segments=0)
    assert sum(device_segments()) == 0


def test_conjugated_and_negated_values_cross() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        a = ops.noted(x.conj(), "a")
        b = torch.complex(ops.twice(y), y.exp()).conj()
        return a * 2, ops.noted(b, "b"), b.imag, ops.noted(b.imag, "c") + 1, x.conj() * b, a.conj()

    x = torch.randn(3, 4, dtype=torch.complex64)
    check(function, x, torch.randn(3, 4), segments=1)
    check(function, x.conj(), torch.randn(3, 4), segments=1)


def test_masks_and_indices_cross() -> None:
    def function(x: Tensor) -> Any:
        mask = ops.noted(x.cos() > 0, "mask")
        _, _, place = ops.moments(x * 2)
        return torch.where(mask, x, x.exp()), mask.sum(), x.view(-1)[place], ~mask, mask.any()

    check(function, torch.randn(3, 4), segments=2)


def test_channels_last() -> None:
    convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)

    def function(x: Tensor) -> Any:
        y = convolution(x)
        z = ops.noted(y.relu(), "a")
        return z, ops.noted(z + y, "b").mean((2, 3)), ops.strides(y), convolution(x * 2)

    x = torch.randn(2, 3, 6, 5)
    with torch.no_grad():
        check(function, x.to(memory_format=torch.channels_last), segments=2)
        check(function, x, segments=2)


@pytest.mark.parametrize(
    ("mode", "inside"),
    [(torch.inference_mode, False), (torch.no_grad, False), (torch.no_grad, True)],
)
def test_gradient_modes(mode: Callable[[], Any], inside: bool) -> None:
    layer = nn.Linear(4, 4)

    def function(x: Tensor) -> Any:
        y = ops.twice(layer(x).tanh())
        if inside:
            with mode():
                z = ops.squared(y).cos()
        else:
            z = ops.squared(y).cos()
        return y, z, x + 1

    run = mixed(function)
    x = torch.randn(3, 4)
    for _ in range(2):
        if inside:
            found, expected = run(x), function(x)
        else:
            with mode():
                found, expected = run(x), function(x)
        assert_same(found, expected)
        properties = operator.attrgetter("requires_grad", "dtype")
        assert [properties(one) for one in found] == [properties(one) for one in expected]
        if not inside:
            assert [one.is_inference() for one in found] == [one.is_inference() for one in expected]
    assert sum(device_segments()) >= 1


def test_tensors_of_inference_mode() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        y.add_(ops.twice(x))
        return ops.squared(y.cos()) + x

    run = mixed(function)
    with torch.inference_mode():
        check(function, torch.randn(3), torch.randn(3), run=run)


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside: bool) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)

    def body(x: Tensor) -> Any:
        y = first(x)
        z = ops.twice(y)
        return second(z.float().exp()), z, torch.linalg.cholesky(torch.eye(3) + x[0, 0] * 0)

    def function(x: Tensor) -> Any:
        if not inside:
            return body(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return body(x)

    run = mixed(function)

    def both(x: Tensor) -> list[Any]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
            return [candidate(x) for candidate in (run, function)]

    for _ in range(2):
        found, expected = both(torch.randn(3, 8))
        assert [one.dtype for one in found] == [one.dtype for one in expected]
        assert_same(found, expected, rtol=3e-2, atol=3e-2)
        found[0].float().sum().backward()
        assert first.weight.grad is not None
    assert sum(device_segments()) >= 2


def test_autocast_around_the_backward_changes_nothing_that_was_traced() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y).sin()

    run = torch.compile(function, backend="pjrt", options={"host_ops": ["aten.mm.default"]})
    given = [torch.randn(size, requires_grad=True) for size in ((3, 4), (4, 5))]
    found = []
    for enabled in (False, True):
        result = run(*given).sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found.append(torch.autograd.grad(result, given))
    assert all(map(torch.equal, *found))
