import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check, lower

torch.manual_seed(0)
X = torch.randn(3, 4, 5)
SPECIAL = torch.tensor([3.0, math.nan, -math.inf, 0.0, -0.0, math.inf, 0.0, math.nan, 3.0])
INTS = torch.tensor([[3, 1, 3, -7], [0, 0, 0, 0]])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "x",
    [X, X.bfloat16(), SPECIAL, INTS, INTS.to(torch.uint8), INTS > 0, X[0, 0, 0], X[:0]],
    ids=["float", "half", "special", "int", "unsigned", "bool", "number", "empty"],
)
def test_sort_is_stable(x, descending):
    for dim in {-1, 0}:
        options = {"stable": True, "dim": dim, "descending": descending}
        check("aten.sort.stable", x, **options, exact=True)
        check("aten.argsort.stable", x, **options, exact=True)


def test_sort_of_distinct_values():
    check("aten.sort.default", X, 1, True, exact=True)


@pytest.mark.parametrize("largest", [False, True])
def test_topk(largest):
    check("aten.topk.default", X, 2, 1, largest, exact=True)
    check("aten.topk.default", X[0, 0, 0], 1, -1, largest, exact=True)
    (values, _) = lower("aten.topk.default", SPECIAL, 4, -1, largest)
    expected = torch.topk(SPECIAL, 4, largest=largest).values
    torch.testing.assert_close(values, expected, equal_nan=True)


def test_kthvalue():
    check("aten.kthvalue.default", X, 2, 1, exact=True)
    check("aten.kthvalue.default", X, 5, -1, True, exact=True)


@pytest.mark.parametrize("right", [False, True])
def test_search_in_a_sorted_sequence(right):
    row = torch.tensor([-1.0, 0.0, 0.0, 2.5])
    values = torch.tensor([[0.0, 3.0, -math.inf], [math.nan, -1.0, 1.0]])
    check("aten.searchsorted.Tensor", row, values, right=right)
    check("aten.searchsorted.Tensor", row.expand(2, 4).contiguous(), values, right=right)
    check("aten.searchsorted.Tensor", row, torch.tensor(1), side="right", out_int32=True)
    check("aten.bucketize.Tensor", values, row, right=right)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("numbers", [0, 1, 5, 8])
def test_search_in_a_sequence_that_ends_in_nan(right, numbers):
    """Sorting puts NaN last; where a search ends among them depends on what it looks at."""
    row = torch.cat([torch.arange(float(numbers)) - 2, torch.full((6,), math.nan)])
    values = torch.tensor([[-3.0, -2.0, 0.5, 3.0, 9.0, math.nan], [2.0] * 6])
    check("aten.searchsorted.Tensor", row, values, right=right)
    check("aten.searchsorted.Tensor", row.repeat(2, 1), values, right=right)
    check("aten.bucketize.Tensor", values, row, right=right)


@pytest.mark.parametrize("right", [False, True])
def test_search_through_a_sorter(right):
    rows, values = torch.randn(3, 5), torch.randn(3, 2)
    name = "aten.searchsorted.Tensor"
    check(name, rows, values, sorter=rows.argsort(), right=right)
    check(name, rows[0], values, sorter=rows[0].argsort(), right=right)
    check(name, rows[:, :0], values, sorter=rows[:, :0].argsort())


def test_search_for_a_number():
    check("aten.searchsorted.Scalar", torch.tensor([-1.0, 0.5, 2.0]), 0.5)
    check("aten.searchsorted.Scalar", torch.arange(5), 2.5)
    check("aten.searchsorted.Scalar", torch.arange(5), 2, right=True, out_int32=True)


NANS = torch.tensor([[1.0, 2.0, math.nan], [3.0, -math.inf, 0.5], [math.nan] * 3])


@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_median(name):
    for x in (X, X.bfloat16(), SPECIAL, INTS, X[0, 0, 0], NANS, X[:0]):
        check(f"aten.{name}.default", x, exact=True)
    for x in (X, NANS, torch.randperm(12).reshape(3, 4), X[0, 0, 0]):
        check(f"aten.{name}.dim", x, -1, exact=True)
        check(f"aten.{name}.dim", x, 0, True, exact=True)


def test_mode():
    few = torch.randint(0, 4, (3, 9), generator=torch.Generator().manual_seed(0))
    for x in (few, few.bfloat16(), few > 1, SPECIAL[-3:-1], X, X[0, 0, 0]):
        check("aten.mode.default", x, exact=True)
        check("aten.mode.default", x, 0, True, exact=True)
