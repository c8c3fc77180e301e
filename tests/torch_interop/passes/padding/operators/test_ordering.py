"""Orders along the padded dimension are what they are without padding."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch

from tests.torch_interop.passes.padding.row_values import COLUMNS, N, X
from tests.torch_interop.passes.padding.rows import assert_padding_changes_nothing

ORDERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "orders": (lambda x: (x.sort(0), x.sort(0, descending=True), x.argsort(0)), (X,)),
    "orders of integers": (
        lambda i: (i.sort(0), i.sort(0, True), i.sort(dim=0, stable=True)),
        (COLUMNS,),
    ),
    "orders of extreme numbers": (
        lambda x: (x.sort(0), x.sort(0, descending=True)),
        (torch.tensor([inf, nan, -inf, nan, 0.0]),),
    ),
    "the largest": (lambda x: (x.topk(2, 0), x.topk(3, 0, largest=False)), (X,)),
    "the largest of what is all the same": (
        lambda x: (x.topk(5, 0).indices.sort().values, x.topk(5, 0, False).indices.sort().values),
        (torch.tensor([-inf, -inf, -inf, -inf, -inf]),),
    ),
    "the smallest of what is all the same": (
        lambda x: x.topk(5, 0, largest=False).indices.sort().values,
        (torch.tensor([nan, nan, nan, nan, nan]),),
    ),
    "the most frequent": (
        lambda i, x: (i.mode(0), i.t().mode(-1, keepdim=True), x.mode(0), x.round().mode(0)),
        (COLUMNS, X),
    ),
    "the most frequent of equal numbers": (
        lambda x, i: (x.mode(0), i.mode(0)),
        (torch.tensor([inf, inf, -inf, 2.0, 2.0]), torch.tensor([3, 1, 1, 3, 2**63 - 1])),
    ),
    "so many of the largest": (
        lambda x: (x.topk(x.shape[0] - 1, 0), x.topk(x.shape[0], 0, False)),
        (X,),
    ),
    "ranks": (
        lambda x: (x.kthvalue(2, 0), x.kthvalue(4, 0, True), x.median(0), x[:, 1].median(0)),
        (X,),
    ),
    "medians": (
        lambda x: (x.nanmedian(0).values, x.nanmedian(), x.median(), x.t().nanmedian()),
        (torch.where(X > 0.5, nan, X),),
    ),
    "medians of NaN": (
        lambda x: (x.nanmedian(0).values, x.nanmedian(), x.median()),
        (torch.full((N, 3), nan),),
    ),
    "medians of integers": (
        lambda i: (i.nanmedian(0).values, i.nanmedian(), i.median()),
        (COLUMNS,),
    ),
    "ranks of integers": (lambda i: i.median(0, True).values, (COLUMNS,)),
    "medians with NaN": (
        lambda x: (x.median(0).values, x.median(1).values, x.kthvalue(5, 0).values),
        (X.masked_fill(X > 1, nan),),
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_padding_changes_nothing(name: str) -> None:
    function, args = ORDERS[name]
    assert_padding_changes_nothing(function, *args)
