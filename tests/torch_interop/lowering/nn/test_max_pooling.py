import math

import pytest
import torch

from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from tests.torch_interop.lowering.harness import check, lower, overload

torch.manual_seed(0)
X = torch.randn(2, 3, 7, 8)
NANS = X.clone()
NANS[0, 0, 2:4, 3:5] = math.nan
LOW = torch.full((1, 1, 5, 5), -math.inf)

# kernel, stride, padding, dilation, ceil_mode
MAX = [
    ([2, 2], [], [0], [1], False),
    ([3, 3], [2, 2], [1, 1], [1, 1], False),
    ([3], [1], [1], [1], False),
    ([3, 2], [2, 3], [1, 0], [1], True),
    ([2, 3], [2], [1], [2, 3], False),
    ([2, 3], [1, 2], [1], [3, 1], True),
    # Windows that leave elements out, and that reach over several of the next ones.
    ([1, 2], [3, 4], [0], [1], False),
    ([5, 4], [2], [2], [1], False),
]
MAX_POOL = "aten.max_pool2d_with_indices"


@pytest.mark.parametrize("parameters", MAX)
@pytest.mark.parametrize("x", [X, X.bfloat16(), NANS, LOW, X[0]], ids=list("xhnl3"))
def test_max_pool_and_its_gradient(x, parameters):
    check(f"{MAX_POOL}.default", x, *parameters, exact=True)
    values, indices = overload(f"{MAX_POOL}.default")(x, *parameters)
    # Whole numbers, of which sums are exact in half precision, too.
    grad = torch.randint(-8, 9, values.shape).to(values.dtype)
    check(f"{MAX_POOL}_backward.default", grad, x, *parameters, indices)


def test_max_pool_of_integers_and_three_dimensions():
    check(f"{MAX_POOL}.default", torch.randint(-9, 9, (1, 2, 6, 6)), [3, 3], [2], [1])
    x = torch.randn(1, 2, 5, 6, 4)
    check("aten.max_pool3d_with_indices.default", x, [2], [2], [1])
    parameters = ([3, 2, 2], [2], [1], [1], True)
    values, indices = overload("aten.max_pool3d_with_indices.default")(x, *parameters)
    grad = torch.randn_like(values)
    check("aten.max_pool3d_with_indices_backward.default", grad, x, *parameters, indices)


def test_huge_windows_are_refused():
    with pytest.raises(NotLowerable, match="400 places"):
        lower(f"{MAX_POOL}.default", torch.randn(1, 1, 20, 20), [20, 20])
