"""Indices that are whole numbers in 0-d tensors: few graphs, and views stay views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop import compat
from tests.torch_interop.compat.capture.helpers import LENGTHS, check_few_graphs
from tests.torch_interop.helpers import assert_same, compiled

POINTS = [(length, 3) for (length,) in LENGTHS]


def _farthest_points(p: torch.Tensor) -> torch.Tensor:
    distances, at, found = torch.full((p.shape[0],), 1e9), torch.zeros((), dtype=torch.long), []
    for _ in range(3):
        found.append(at)
        distances = torch.minimum(distances, (p - p[at]).square().sum(-1))
        at = distances.argmax()
    return p[torch.stack(found)] * 2


def _written(p: torch.Tensor) -> torch.Tensor:
    made = p * 2
    for _ in range(2):
        made[made[:, 0].argmax(), 1:] = 0.5
    return made


def _read_and_written(p: torch.Tensor) -> torch.Tensor:
    made = p * 2
    for _ in range(2):
        at = made[:, 0].argmax()
        made[at] = made[at - 1] * 0.5 - 3
    return made


LOOPS = {
    "read": _farthest_points,
    "written": _written,
    "read and written": _read_and_written,
    "negative": lambda p: p[p[:, 0].argmax() - p.shape[0]] * 2,
    "a column": lambda p: p[:, p[0].argmax()] * 2,
    "a part of a row": lambda p: p[p[:, 1].argmin().to(torch.int32), 1:] * 2,
    "one number": lambda p: p[p[:, 1].argmin(), p[0].argmax()] * 2,
    "of the last dimension": lambda p: p[..., None, p[0].argmax()] * 2,
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", LOOPS)
def test_few_graphs_serve_all_sizes(name: str) -> None:
    before = dict(compat.graph_breaks())
    check_few_graphs(POINTS, LOOPS[name])
    assert dict(compat.graph_breaks()) == before


def _writes_source(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    x = x * 2
    row = x[at]
    x.add_(1)
    return row * 3


def _writes_row(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    x = x * 2
    x[at].add_(1)
    return x * 3


def _writes_part(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    x = x * 2
    x[:, at][1:].zero_()
    return x * 3


def _writes_argument(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    x[at] += 1
    return x * 3


def _writes_data(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    x = x * 2
    row = x[at]
    x.data.add_(1)
    return row * 3


def _writes_between(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    x = x * 2
    row = x[at]
    x[at] = row + 1
    x[at - 1] = 5.0
    return row * 3


def _writes_another(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    x = x * 2
    x[at] = torch.arange(x.shape[1])
    x[:, at] = 7
    return x * 3


WRITES = (
    *(_writes_source, _writes_row, _writes_part, _writes_argument, _writes_data),
    *(_writes_between, _writes_another),
)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("function", WRITES)
def test_writes_are_seen(function: Callable[..., torch.Tensor]) -> None:
    run = compiled(function)
    for length in (4, 5, 7):
        x, at = torch.randn(length, length), torch.tensor(length - 2)
        given = x.clone()
        assert_same(run(given, at), function(x, at))
        assert_same(given, x)


VIEWS: dict[str, Callable[..., torch.Tensor]] = {
    "row": lambda x, at: x[at],
    "column": lambda x, at: x[:, at],
    "part": lambda x, at: x[at][1:],
    "of a view": lambda x, at: x.T[at],
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", VIEWS)
def test_results_are_views(name: str) -> None:
    view = VIEWS[name]
    run = compiled(view)
    for length in (4, 5, 7):
        x, at = torch.randn(length, length), torch.tensor(1 - length)
        found, expected = run(x, at), view(x, at)
        assert_same(found, expected)
        assert found.stride() == expected.stride()
        assert found.data_ptr() == expected.data_ptr()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    "function",
    [lambda x, at: x[at] * 2, lambda x, at: x[:, at] * 2, lambda x, at: _writes_another(x, at)],
    ids=["row", "column", "written"],
)
def test_positions_outside(function: Callable[..., Any]) -> None:
    run = compiled(function)
    assert_same(run(torch.ones(4, 4), torch.tensor(3)), function(torch.ones(4, 4), torch.tensor(3)))
    for at in (4, -5):
        with pytest.raises(IndexError, match=f"index {at} is out of bounds for dimension"):
            run(torch.ones(4, 4), torch.tensor(at))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool], ids=str)
def test_masks_are_no_positions(dtype: torch.dtype) -> None:
    run = compiled(lambda x, mask: x[mask] * 2)
    for mask in (torch.tensor(1, dtype=dtype), torch.tensor(0, dtype=dtype)):
        assert_same(run(torch.ones(4, 3), mask), torch.ones(4, 3)[mask] * 2)
