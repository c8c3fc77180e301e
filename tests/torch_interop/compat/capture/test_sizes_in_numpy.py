"""Functions of NumPy on sizes need no graph for each size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.compat.capture.helpers import LENGTHS, SIGNALS, check_few_graphs
from tests.torch_interop.helpers import assert_same, compiled

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scales": lambda x: x / np.sqrt(x.shape[-1]) + x * (np.log(x.shape[-1]) + np.log2(len(x))),
    "powers": lambda x: x * np.power(x.shape[-1], 0.5) + np.exp(-x.shape[-1]) + np.log1p(len(x)),
    "sizes": lambda x: x[..., : int(np.ceil(x.shape[-1] / 2))] * np.prod(x.shape),
    "whole numbers": lambda x: x[..., : int(np.floor(x.shape[-1] / 2)) + 1] * 2,
    "bounds": lambda x: x / np.maximum(x.shape[-1], 8) + np.minimum(8, x.shape[-1]),
    "differences": lambda x: x * np.abs(x.shape[-1] - 10),
    "numbers in order": lambda x: x * torch.from_numpy(np.linspace(0, 1, x.shape[-1])).float(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shapes", [LENGTHS, pytest.param(SIGNALS, marks=pytest.mark.slow)])
def test_few_graphs_serve_all_sizes(name: str, shapes: list[tuple[int, ...]]) -> None:
    check_few_graphs(shapes, FUNCTIONS[name])


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("function", "whole"),
    [
        (lambda x: x[: np.sqrt(len(x)).astype(int)] * 2, True),
        (lambda x: x * np.floor(len(x) / 3).astype(float).item(), True),
        (lambda x: x.sin() * float(np.sqrt(len(x)).astype(np.float16)), False),
        (lambda x: x.sin() * float((np.sqrt(len(x)) * 2).astype(np.float32)), True),
    ],
)
def test_methods_of_scalars(
    function: Callable[[torch.Tensor], torch.Tensor], *, whole: bool
) -> None:
    run = torch.compile(function, backend="pjrt", dynamic=True, fullgraph=whole)
    for length in (4, 5, 9, 17, 30):
        x = torch.randn(length)
        assert_same(run(x), function(x), rtol=1e-6, atol=1e-6)
    assert not whole or len(compiled_graphs()) <= 3


def test_results_are_scalars_of_numpy() -> None:
    run = torch.compile(
        lambda x: (x * 2, np.sqrt(len(x)), np.prod(x.shape)), backend="pjrt", dynamic=True
    )
    for length in (4, 5, 9):
        _, root, size = run(torch.ones(length, 2))
        assert (type(root), root) == (np.float64, np.sqrt(length))
        assert (type(size), size) == (np.int64, 2 * length)


def test_arrays_stay_arrays() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * torch.from_numpy(np.sqrt(np.ones(3) * x.shape[0])).sum() + np.prod([2, 3])

    run = compiled(function)
    for length in (4, 5, 6):
        x = torch.randn(length)
        assert_same(run(x), function(x), rtol=1e-6, atol=1e-6)
