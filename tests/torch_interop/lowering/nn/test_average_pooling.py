import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check, overload

torch.manual_seed(0)
X = torch.randn(2, 3, 7, 8)

# kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
AVERAGE = [
    ([2, 2], [], [0], False, True, None),
    ([3, 3], [2, 2], [1, 1], False, True, None),
    ([3, 3], [2, 2], [1, 1], True, False, None),
    ([3, 2], [2, 3], [1, 1], True, True, None),
    ([2, 3], [3], [0, 1], False, True, 5),
    # Windows that leave elements out, and so many over each that they are not added one by one.
    ([1, 2], [3, 4], [0], False, True, None),
    ([5, 5], [1], [2], False, False, None),
]


@pytest.mark.parametrize("parameters", AVERAGE)
@pytest.mark.parametrize("x", [X, X.bfloat16(), X[0]], ids=list("xh3"))
def test_avg_pool_and_its_gradient(x, parameters):
    check("aten.avg_pool2d.default", x, *parameters)
    grad = torch.randn_like(overload("aten.avg_pool2d.default")(x, *parameters))
    check("aten.avg_pool2d_backward.default", grad, x, *parameters)


def test_avg_pool_in_one_and_three_dimensions():
    check("aten.avg_pool1d.default", torch.randn(2, 3, 9), [3], [2], [1])
    x, parameters = torch.randn(1, 2, 5, 4, 6), ([2, 2, 3], [2], [1], False, False)
    check("aten.avg_pool3d.default", x, *parameters)
    grad = torch.randn_like(overload("aten.avg_pool3d.default")(x, *parameters))
    check("aten.avg_pool3d_backward.default", grad, x, *parameters, None)


@pytest.mark.parametrize("size", [[1, 1], [7, 4], [3, 5], [10, 1]])
@pytest.mark.parametrize("x", [X, X.half(), X[0]], ids=list("xh3"))
def test_adaptive_avg_pool_and_its_gradient(x, size):
    check("aten._adaptive_avg_pool2d.default", x, size)
    grad = torch.randn(*x.shape[:-2], *size).to(x.dtype)
    check("aten._adaptive_avg_pool2d_backward.default", grad, x)


def test_adaptive_avg_pool_in_one_and_three_dimensions():
    check("aten.adaptive_avg_pool1d.default", torch.randn(2, 3, 9), [4])
    x = torch.randn(1, 2, 5, 4, 6)
    check("aten._adaptive_avg_pool3d.default", x, [2, 4, 3])
    check("aten._adaptive_avg_pool3d_backward.default", torch.randn(1, 2, 2, 4, 3), x)


@pytest.mark.parametrize("size", [(5, 7), (7, 4), (6, 5)])
def test_infinities_stay_in_their_windows(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size)
    x[0, 0, 0, 0], x[1, 1, 2, 2] = math.inf, math.nan
    for count in (2, 3, 4):
        expected = torch.nn.functional.adaptive_avg_pool2d(x, count)
        compiled = torch.compile(torch.nn.functional.adaptive_avg_pool2d, backend="pjrt")
        torch.testing.assert_close(compiled(x, count), expected, equal_nan=True)
