import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check, overload

torch.manual_seed(0)
X = torch.randn(2, 3, 7, 9)
NANS = X.clone()
NANS[0, 0, 2:4, 3:5] = math.nan
LOW = torch.full((1, 1, 4, 4), -math.inf)
VOLUME = torch.randn(2, 2, 5, 6, 7)
INPUTS = pytest.mark.parametrize(
    "x",
    [X, X.bfloat16(), X.round(), NANS, LOW, X[0]],
    ids=["x", "half", "ties", "nan", "low", "3d"],
)


def check_with_gradient(name, x, *parameters):
    check(f"aten.{name}.default", x, *parameters, exact=True)
    values, indices = overload(f"aten.{name}.default")(x, *parameters)
    grad = torch.randn_like(values)
    sizes = parameters[:-1]  # All but the output size of adaptive, the samples of fractional.
    check(f"aten.{name}_backward.default", grad, x, *sizes, indices)


@INPUTS
@pytest.mark.parametrize("size", [[3, 4], [7, 9], [1, 1], [9, 2]])
def test_adaptive_max_pool_and_its_gradient(x, size):
    check_with_gradient("adaptive_max_pool2d", x, size)


def test_adaptive_max_pool_in_three_dimensions_and_of_nothing():
    for size in ([3, 4, 2], [1, 1, 1], [7, 6, 5]):
        check_with_gradient("adaptive_max_pool3d", VOLUME, size)
    check_with_gradient("adaptive_max_pool2d", X[:0], [2, 2])


@INPUTS
@pytest.mark.parametrize("kernel", [[2, 3], [1, 1], [4, 4]])
def test_fractional_max_pool_and_its_gradient(x, kernel):
    samples = torch.rand(x.shape[0] if x.dim() == 4 else 1, x.shape[-3], 2).to(x.dtype)
    size = [min(4, x.shape[-2] - kernel[0] + 1), min(3, x.shape[-1] - kernel[1] + 1)]
    check_with_gradient("fractional_max_pool2d", x, kernel, size, samples)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_fractional_windows_start_where_each_step_is_rounded(dtype):
    for dims, size in ((2, 7), (3, 7), (2, 300)):
        x = torch.randn(1, 200, size, *[7] * (dims - 1)).to(dtype)
        samples = torch.rand(1, 200, dims).to(dtype)
        name = f"aten.fractional_max_pool{dims}d.default"
        check(name, x, [2] * dims, [4] * dims, samples, exact=True)


def test_fractional_max_pool_in_three_dimensions():
    for x in (VOLUME, VOLUME.double(), VOLUME[0]):
        samples = torch.rand(x.shape[0] if x.dim() == 5 else 1, 2, 3, dtype=x.dtype)
        check_with_gradient("fractional_max_pool3d", x, [2, 3, 2], [3, 2, 4], samples)
