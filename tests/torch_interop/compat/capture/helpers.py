"""Sizes that change, and the check that few graphs serve them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from pjrt_bridge.torch_interop import compat

LENGTHS = [(length,) for length in (3, 4, 5, 7, 8, 11, 12, 13, 21, 22)]
MATRICES = [(length, length) for (length,) in LENGTHS]
SIGNALS = [(2, 3, length) for (length,) in LENGTHS]


def check_few_graphs(shapes: Iterable[Any], function: Callable[[torch.Tensor], Any]) -> None:
    """A function gives eager's result and gradient for each shape, with at most four graphs."""
    run = torch.compile(function, backend="pjrt")
    before = compat.graphs_made()
    for shape in shapes:
        x = torch.randn(shape, requires_grad=True)
        given = x.detach().clone().requires_grad_()
        expected, found = function(x), run(given)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert found.stride() == expected.stride()
        if expected.requires_grad:
            expected.square().sum().backward()
            found.square().sum().backward()
            torch.testing.assert_close(given.grad, x.grad, rtol=1e-4, atol=1e-4)
    # Some small sizes are special to PyTorch. None at all would be a function that is not compiled.
    assert 1 <= compat.graphs_made() - before <= 4
