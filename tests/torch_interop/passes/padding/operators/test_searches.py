"""Searches in rows whose length changes, some of which end with NaN."""

from collections.abc import Callable

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs

pytestmark = pytest.mark.usefixtures("fresh")


def _rows(count: int, nans: int) -> torch.Tensor:
    row = torch.randn(count)
    row[torch.randperm(count)[:nans]] = torch.nan
    return row


def searched(x: torch.Tensor, right: bool) -> torch.Tensor:
    return torch.searchsorted(x.sort()[0], x, right=right)


def bucketed(x: torch.Tensor, right: bool) -> torch.Tensor:
    return torch.bucketize(x[:3], x.sort()[0], out_int32=True, right=right)


def in_rows(x: torch.Tensor, right: bool) -> torch.Tensor:
    rows = torch.stack([x, -x]).sort(-1)[0]
    return torch.searchsorted(rows, torch.stack([x, x]), side="right" if right else "left")


def isin(x: torch.Tensor, right: bool) -> torch.Tensor:
    return torch.isin(x, x).reshape(1, -1).sort(1)[0]


@pytest.mark.parametrize("function", [searched, bucketed, in_rows, isin])
@pytest.mark.parametrize("right", [False, True])
def test_searches_compare_the_same_elements(
    function: Callable[[torch.Tensor, bool], torch.Tensor], right: bool
) -> None:
    run = torch.compile(function, backend="pjrt", dynamic=True)
    for count in (12, 36, 7, 41, 33, 18, 29, 25, 38, 14, 50):
        for nans in (0, count // 6, count):
            x = _rows(count, nans)
            found, expected = run(x, right), function(x, right)
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected), (count, nans)
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())
    assert len(compiled_graphs()) <= 4
