"""Arguments of padded sizes that a graph writes into."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same

pytestmark = pytest.mark.usefixtures("fresh")


def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2).add_(y)
    return x.sum(0)


def partly(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1:-1] = y[2:] * y.mean(0)
    y[:, 0].exp_()
    return y.cumsum(0)


def returned(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.copy_(y.flip(0))
    return x, x[1:], y + x


def turned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.t().add_(y.t().softmax(-1))
    return x.t() @ y


def in_pairs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The value is merged of pairs of rows, which pad elsewhere than the rows."""
    x.copy_((y.reshape(2, -1, 4) * 2).cumsum(1).reshape(-1, 4))
    return y.sum(0)


def test_a_value_that_is_merged_otherwise() -> None:
    run = torch.compile(in_pairs, backend="pjrt")
    for rows in (6, 8, 10, 30, 26, 28, 24, 32, 22):
        y = torch.randn(rows, 4)
        ours, theirs = torch.zeros(rows, 4), torch.zeros(rows, 4)
        assert_same(run(ours, y), in_pairs(theirs, y), rtol=1e-5, atol=1e-5)
        assert_same(ours, theirs, rtol=1e-5, atol=1e-5)
    assert len(compiled_graphs()) <= 5
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())


@pytest.mark.parametrize("function", [scaled, partly, returned, turned])
@pytest.mark.parametrize("layout", ["dense", "columns", "part"])
def test_they_get_what_eager_writes(function: Callable[..., Any], layout: str) -> None:
    def given(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(rows)
        x, y = torch.randn(rows, 4), torch.randn(rows, 4)
        if layout == "columns":
            x = torch.randn(4, rows).t()
        if layout == "part":
            x = torch.randn(2 * rows, 6)[::2, 1:5]
        return x, y

    run = torch.compile(function, backend="pjrt")
    for rows in (5, 6, 9, 30, 27, 28, 25, 31, 24):
        ours, theirs = given(rows), given(rows)
        assert_same(run(*ours), function(*theirs), rtol=1e-5, atol=1e-5)
        assert_same(ours, theirs, rtol=1e-5, atol=1e-5)
        if layout == "part":
            assert_same(ours[0]._base, theirs[0]._base, rtol=1e-5, atol=1e-5)
    assert len(compiled_graphs()) <= 5
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())


def test_writes_count_as_copies_and_versions() -> None:
    run = torch.compile(scaled, backend="pjrt", options={"buckets": [8]}, dynamic=True)
    x = torch.ones(5, 4)
    before = x._version
    run(x, torch.ones(5, 4))
    assert x._version > before
    assert_same(x, torch.full((5, 4), 3.0))
