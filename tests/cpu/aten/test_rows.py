"""What goes along rows: every dimension, order and element, and the ones that are no calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cpu.aten.comparing import assert_close, compare
from tests.extent import examples

pytestmark = pytest.mark.usefixtures("always", "fresh")

Function = Callable[[torch.Tensor, int], Any]

FLOATING: dict[str, Function] = {
    "softmax": lambda x, dim: x.softmax(dim),
    "log_softmax": lambda x, dim: x.log_softmax(dim),
    "logcumsumexp": lambda x, dim: x.logcumsumexp(dim),
}
ORDERED: dict[str, Function] = {
    "cumsum": lambda x, dim: x.cumsum(dim),
    "cumprod": lambda x, dim: x.cumprod(dim),
    "topk": lambda x, dim: x.topk(min(2, x.shape[dim]) if x.dim() else 1, dim),
    "topk of the smallest": lambda x, dim: x.topk(x.shape[dim] if x.dim() else 1, dim, False),
}
FLOATS = [torch.float32, torch.bfloat16, torch.float64]
SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (3, 5), (1, 5), (5, 1), (2, 3, 4), (2, 1, 3, 2)]


def every_dimension(functions: dict[str, Function]) -> Function:
    """All functions along all dimensions, as one graph."""

    def run(x: torch.Tensor, _: int = 0) -> Any:
        rank = max(x.dim(), 1)
        return [f(x, dim) for f in functions.values() for dim in range(-rank, rank)]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_dimension(shape: tuple[int, ...], dtype: torch.dtype, written: Counter[str]) -> None:
    compare(every_dimension(FLOATING | ORDERED), torch.randn(shape).to(dtype))
    assert bool(written) == bool(shape)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_matrix_that_lies_otherwise(dtype: torch.dtype, written: Counter[str]) -> None:
    run = every_dimension(FLOATING | ORDERED)
    compare(lambda x: run(x.mT, 0), torch.randn(3, 5).to(dtype))
    assert written["_softmax.out"]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_whole_numbers(dtype: torch.dtype, written: Counter[str]) -> None:
    x = torch.randint(-9, 9, (3, 4, 5), dtype=dtype)
    compare(every_dimension(ORDERED), x)
    assert bool(written["cumsum.out"]) == (dtype == torch.int64)
    assert written["topk.values"]


def test_numbers_that_no_float_holds() -> None:
    top = 2**63 - 1
    x = torch.tensor([[top, top - 1, -top - 1, -top, 2**53 + 1, 2**53]] * 3)
    compare(every_dimension({name: f for name, f in ORDERED.items() if "cum" not in name}), x)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.float16])
def test_other_types_are_no_calls(dtype: torch.dtype, written: Counter[str]) -> None:
    x = torch.randint(0, 2, (3, 9)).to(dtype)
    compiled = torch.compile(lambda x: x.cumsum(1), backend="pjrt")
    assert torch.equal(compiled(x), x.cumsum(1))
    assert not written


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
def test_orders_of_memory(dtype: torch.dtype, written: Counter[str]) -> None:
    """Softmax would write what lies otherwise to wrong places."""
    run = every_dimension(FLOATING | ORDERED)
    x = torch.randn(2, 3, 4, 5).to(dtype)
    compare(lambda x: run(x.permute(2, 0, 3, 1), 0), x)
    compare(lambda x: run(x.mT, 0), x[0])
    compare(run, x.to(memory_format=torch.channels_last))
    compare(run, x[:, ::2, 1:])
    compare(lambda x: run(x.expand(2, 3, 5), 0), x[0, :1, 0])
    assert written


@pytest.mark.parametrize("dtype", FLOATS)
def test_not_a_number_infinities_and_zeros(dtype: torch.dtype) -> None:
    nan, inf = float("nan"), float("inf")
    rows = [
        [1.0, nan, 2.0, -inf, inf, nan, -1.0],
        [inf, inf, 1.0, -inf, -inf, 0.0, -0.0],
        [-inf] * 7,
        [nan] * 7,
        [0.0, -0.0, 0.0, -0.0, 1.0, 1.0, -1.0],
        [inf, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    ]
    x = torch.tensor(rows).to(dtype)
    compare(every_dimension(FLOATING | ORDERED), x)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)], ids=str)
def test_empty_ones_are_no_calls(shape: tuple[int, ...], written: Counter[str]) -> None:
    allowed = {name: f for name, f in (FLOATING | ORDERED).items() if "arg" not in name}
    compare(every_dimension(allowed), torch.empty(shape))
    assert not written


def test_none_of_the_first(written: Counter[str]) -> None:
    compare(lambda x: x.topk(0, 1), torch.randn(3, 5))
    assert not written


@pytest.mark.parametrize("k", [1, 40, 299, 300])
@pytest.mark.parametrize("sorted_", [True, False])
def test_the_first_of_many(k: int, sorted_: bool) -> None:
    x = torch.stack([torch.randperm(300) for _ in range(4)])
    for tensor in (x, x.float()):
        compiled = torch.compile(lambda x: x.topk(k, 1, sorted=sorted_), backend="pjrt")
        found, expected = compiled(tensor), tensor.topk(k, 1, sorted=sorted_)
        for left, right in zip(found, expected, strict=True):
            assert torch.equal(left, right)


def test_sums_in_another_type() -> None:
    x = torch.randint(-9, 9, (3, 40))
    compare(lambda x: x.cumsum(1, dtype=torch.float32), x)
    compare(lambda x: x.float().cumsum(1, dtype=torch.float64), x)
    compare(lambda x: x.int().cumprod(1), x % 2)
    compare(lambda x: x.bfloat16().softmax(1, dtype=torch.float32), x)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients(dtype: torch.dtype) -> None:
    def run(x: torch.Tensor) -> Any:
        y = x.softmax(1) + x.log_softmax(0) + x.cumsum(1) + x.logcumsumexp(0)
        return y, x.topk(3, 1).values, x.sort(0).values, (x + 2).cumprod(1)

    compare(run, torch.randn(5, 6).to(dtype), train=True)


def test_in_a_row_no_part_begins_within(written: Counter[str]) -> None:
    """Rows are cut between them, never along them."""
    x = torch.arange(40.0).reshape(20, 2)
    compare(lambda x: (x.cumsum(0), x.topk(3, 0)), x)
    assert written["cumsum.out"]


@pytest.mark.slow
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.permutations(range(4)),
    st.sampled_from(FLOATS),
)
def test_drawn_rows(shape: list[int], order: list[int], dtype: torch.dtype) -> None:
    chosen = [dim for dim in order if dim < len(shape)]
    run = every_dimension(FLOATING | ORDERED)
    x = torch.randint(-4, 5, shape).to(dtype)
    torch.compiler.reset()
    compiled = torch.compile(lambda x: run(x.permute(chosen), 0), backend="pjrt")
    for left, right in zip(
        torch.utils._pytree.tree_leaves(compiled(x)),
        torch.utils._pytree.tree_leaves(run(x.permute(chosen), 0)),
        strict=True,
    ):
        assert_close(left, right)
