import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check

NANS = torch.tensor(
    [
        [1.0, 2.0, math.nan, 3.0, math.nan],
        [3.0, 3.0, 1.0, 0.0, -0.0],
        [-math.inf, math.inf, 1.0, math.inf, -math.inf],
    ]
)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize(
    "x",
    [NANS, NANS.bfloat16(), torch.tensor([[3, 1, 3], [-2, 7, 7]]), NANS > 1, NANS[1, 2], NANS[:0]],
    ids=["float", "half", "int", "bool", "number", "empty"],
)
def test_running_extremes(name, x):
    for dim in {-1, 0}:
        check(f"aten.{name}.default", x, dim, exact=True)
