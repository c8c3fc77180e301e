"""Attention with calls: sides, masks and lengths of every kind that the rule takes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attend

from tests.cpu.aten.comparing import assert_close, compare

pytestmark = pytest.mark.usefixtures("always", "fresh")

FLOATS = [torch.float32, torch.bfloat16]
KERNEL = "_scaled_dot_product_flash_attention_for_cpu.default"


def sides(
    batch: int, heads: int, length: int, keys: int, size: int, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Query, key and value as models give them: the heads of a place side by side."""
    shapes = [(batch, rows, heads, size) for rows in (length, keys, keys)]
    return [torch.randn(shape).to(dtype).transpose(1, 2) for shape in shapes]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape", [(3, 2, 9, 9, 16), (1, 4, 9, 9, 16), (2, 3, 5, 12, 8), (1, 1, 12, 5, 8)]
)
def test_forward_and_backward(
    shape: tuple[int, ...], causal: bool, dtype: torch.dtype, written: Counter[str]
) -> None:
    values = sides(*shape, dtype)  # type: ignore[arg-type]
    compare(lambda *s: attend(*s, is_causal=causal, scale=0.3), *values, train=True)
    assert written[KERNEL]
    assert written["_scaled_dot_product_flash_attention_for_cpu_backward.default"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "mask",
    [(9, 12), (1, 1, 9, 12), (2, 1, 9, 12), (1, 3, 9, 12), (2, 3, 9, 12), (2, 1, 1, 12), (9, 1)],
)
def test_masks_that_broadcast(
    mask: tuple[int, ...], dtype: torch.dtype, written: Counter[str]
) -> None:
    two = sides(2, 3, 9, 12, 16, dtype)
    numbers = torch.randn(mask).to(dtype)
    hidden = numbers.masked_fill(torch.rand(mask) < 0.3, -torch.inf)

    def all_of(q: Any, k: Any, v: Any, numbers: Any, hidden: Any) -> Any:
        masks = (numbers, hidden, numbers > 0, numbers.float())
        return [attend(q, k, v, attn_mask=mask) for mask in masks]

    def of_one(*sides: Any) -> Any:
        return all_of(*(x[:1] if x.dim() == 4 else x for x in sides))

    with torch.no_grad():
        compare(all_of, *two, numbers, hidden)
        compare(of_one, *two, numbers, hidden)
    assert written[KERNEL]


@pytest.mark.parametrize(("batch", "dtype"), [(1, torch.float32), (3, torch.bfloat16)])
def test_a_mask_in_training(batch: int, dtype: torch.dtype, written: Counter[str]) -> None:
    mask = torch.randn(batch, 1, 9, 9).to(dtype)
    values = sides(batch, 2, 9, 9, 16, dtype)
    compare(lambda *s: attend(*s, attn_mask=mask), *values, train=True)
    assert written[KERNEL]


def test_rows_that_are_masked_out_whole() -> None:
    values = sides(2, 2, 6, 6, 8, torch.float32)
    mask = torch.zeros(6, 6)
    mask[2] = -torch.inf
    with torch.no_grad():
        compare(lambda *s: attend(*s[:3], attn_mask=s[3]), *values, mask)
        compare(lambda *s: attend(*s[:3], attn_mask=s[3] == 0), *values, mask)


@pytest.mark.parametrize("batch", [1, 2])
def test_fewer_key_heads(batch: int) -> None:
    query, _, _ = sides(batch, 6, 9, 9, 16, torch.float32)
    _, key, value = sides(batch, 2, 9, 9, 16, torch.float32)
    with torch.no_grad():
        compare(lambda *s: attend(*s, enable_gqa=True), query, key, value)
    compare(lambda *s: attend(*s, enable_gqa=True, is_causal=True), query, key, value, train=True)


def test_one_key_head_for_all(written: Counter[str]) -> None:
    """The sides are expanded: no memory of their own, and another number of heads before it."""
    query, _, _ = sides(2, 6, 9, 9, 16, torch.float32)
    _, key, value = sides(2, 1, 9, 9, 16, torch.float32)

    def shared(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k.expand(2, 6, 9, 16), v.expand(2, 6, 9, 16))

    compare(shared, query, key, value, train=True)
    assert written[KERNEL]


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3), (3, 1, 2, 0)])
def test_sides_in_any_order(order: tuple[int, ...], written: Counter[str]) -> None:
    back = [order.index(dim) for dim in range(4)]
    shape = (2, 3, 9, 16)
    values = [torch.randn([shape[dim] for dim in order]) for _ in range(3)]
    with torch.no_grad():
        compare(lambda *s: attend(*(x.permute(back) for x in s)), *values)
    compare(lambda *s: attend(*(x.permute(back) for x in s)), *values, train=True)
    # PyTorch itself takes another way where the elements of a head lie apart.
    assert bool(written[KERNEL]) == (order[3] == 3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_query_and_many_keys(dtype: torch.dtype) -> None:
    """What generation of a text does."""
    values = sides(1, 4, 1, 33, 16, dtype)
    with torch.no_grad():
        compare(attend, *values)


def test_empty_sides_dropout_and_other_types_are_no_calls(written: Counter[str]) -> None:
    with torch.no_grad():
        compare(attend, *sides(0, 2, 5, 5, 8, torch.float32))
        compare(attend, *sides(2, 2, 5, 5, 8, torch.float64))
        values = sides(2, 2, 5, 5, 8, torch.float32)
        dropped = torch.compile(lambda *s: attend(*s, dropout_p=1e-9), backend="pjrt")
        assert_close(dropped(*values), attend(*values))
    assert not written[KERNEL]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_a_number_stays_in_its_head(bad: float) -> None:
    query, key, value = sides(2, 2, 6, 6, 8, torch.float32)
    query[0, 1, 2, 3] = bad
    with torch.no_grad():
        compare(attend, query, key, value)
