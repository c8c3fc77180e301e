"""Bags of one length are summed in groups, and others as they were."""

import math
import re

import pytest
import torch
from torch.nn import functional

from pjrt_bridge.torch_interop.passes import equal_bags
from tests.torch_interop.helpers import compiled

pytestmark = pytest.mark.usefixtures("fresh")

torch.manual_seed(0)
TABLE = torch.randn(40, 5)
INDICES = torch.randint(40, (6, 3))


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of bags that were summed in groups."""
    lengths: list[int] = []
    inner = equal_bags._length

    def noting(node):
        length = inner(node)
        if length:
            lengths.append(length)
        return length

    monkeypatch.setattr(equal_bags, "_length", noting)
    return lengths


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(6, 3), (1, 1), (7, 1), (1, 9), (128, 20)], ids=str)
def test_rows_of_indices(grouped, mode, dtype, shape):
    table, indices = TABLE.to(dtype), torch.randint(40, shape)
    found = compiled(lambda t, i: functional.embedding_bag(i, t, mode=mode))(table, indices)
    expected = functional.embedding_bag(indices, table, mode=mode)
    torch.testing.assert_close(found, expected, check_stride=True)
    assert grouped == [shape[1]]


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_numbers_that_are_special(grouped, mode):
    table = TABLE.clone()
    for row, number in enumerate((math.nan, math.inf, -math.inf, -0.0, 1e-42)):
        table[row] = number
    indices = torch.tensor([[0, 9], [1, 8], [2, 1], [3, 3], [4, 4], [2, 7]])
    found = compiled(lambda t, i: functional.embedding_bag(i, t, mode=mode))(table, indices)
    expected = functional.embedding_bag(indices, table, mode=mode)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert torch.equal(found[3].signbit(), expected[3].signbit())
    assert grouped == [2]


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_gradients_of_the_table(grouped, mode, by_frequency):
    def function(table, indices):
        found = functional.embedding_bag(indices, table, mode=mode, scale_grad_by_freq=by_frequency)
        return found.square().sum()

    tables = [TABLE.clone().requires_grad_() for _ in range(2)]
    for table, each in zip(tables, (compiled(function), function), strict=True):
        each(table, INDICES).backward()
    torch.testing.assert_close(tables[0].grad, tables[1].grad)
    assert grouped == [3]


def test_tables_and_indices_that_lie_across(grouped):
    table, indices = torch.randn(5, 40).T, torch.randint(40, (3, 6)).T
    found = compiled(lambda t, i: functional.embedding_bag(i, t, mode="sum"))(table, indices)
    torch.testing.assert_close(found, functional.embedding_bag(indices, table, mode="sum"))
    assert grouped == [3]


@pytest.mark.parametrize(
    "how",
    [
        {"mode": "max"},
        {"mode": "sum", "padding_idx": 2},
        {"mode": "sum", "per_sample_weights": torch.rand(6, 3)},
    ],
    ids=["largest", "padding", "weights"],
)
def test_others_are_not_grouped(grouped, how):
    found = compiled(lambda t, i: functional.embedding_bag(i, t, **how))(TABLE, INDICES)
    torch.testing.assert_close(found, functional.embedding_bag(INDICES, TABLE, **how))
    assert grouped == []


@pytest.mark.parametrize("end", [18, 12, 17], ids=["all", "a last bag that is longer", "shorter"])
def test_offsets_that_the_program_makes(grouped, end):
    indices = INDICES.flatten()

    def function(table, indices):
        return functional.embedding_bag(indices, table, torch.arange(0, end, 3), mode="sum")

    found = compiled(function)(TABLE, indices)
    torch.testing.assert_close(found, function(TABLE, indices))
    assert grouped == ([3] if end == 18 else [])


def test_an_index_out_of_range_is_an_error():
    def function(table, indices):
        return functional.embedding_bag(indices, table, mode="sum")

    wrong = torch.tensor([[0, 40]])
    with pytest.raises((IndexError, RuntimeError)) as eager:
        function(TABLE, wrong)
    with pytest.raises(type(eager.value), match=re.escape(str(eager.value))):
        compiled(function)(TABLE, wrong)


def test_bags_that_are_asked_for_on_the_host_stay(grouped):
    options = {"host_ops": ["aten._embedding_bag_forward_only"]}
    function = torch.compile(
        lambda t, i: functional.embedding_bag(i, t), backend="pjrt", options=options
    )
    torch.testing.assert_close(function(TABLE, INDICES), functional.embedding_bag(INDICES, TABLE))
    assert grouped == []


def test_batches_of_several_sizes():
    function = torch.compile(
        lambda t, i: functional.embedding_bag(i, t, mode="sum"), backend="pjrt", dynamic=True
    )
    for rows in (1, 2, 5, 6):
        indices = torch.randint(40, (rows, 3))
        expected = functional.embedding_bag(indices, TABLE, mode="sum")
        torch.testing.assert_close(function(TABLE, indices), expected)
