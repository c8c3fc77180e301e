"""Multiplications of operators: as torch's counter of operations has them, and of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode

from pjrt_bridge.torch_interop.passes.padding.multiplications import multiplications

aten = torch.ops.aten


def _attention_backward(q: torch.Tensor) -> Any:
    q = q.detach().requires_grad_()
    return torch.autograd.grad(F.scaled_dot_product_attention(q, q, q).sum(), q)


def _convolution_backward(
    x: torch.Tensor, w: torch.Tensor, *, transposed: bool, first: bool = True
) -> Any:
    made = aten.convolution(x, w, None, [1], [0], [1], transposed, [0], 1)
    mask = [first, True, False]
    return aten.convolution_backward(
        torch.ones_like(made), x, w, None, [1], [0], [1], transposed, [0], 1, mask
    )


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "mm": (torch.mm, ((6, 5), (5, 7))),
    "bmm": (torch.bmm, ((3, 6, 5), (3, 5, 7))),
    "addmm": (torch.addmm, ((7,), (6, 5), (5, 7))),
    "baddbmm": (torch.baddbmm, ((3, 6, 7), (3, 6, 5), (3, 5, 7))),
    "convolution": (lambda x, w: F.conv1d(x, w, groups=2), ((2, 4, 9), (6, 2, 3))),
    "transposed convolution": (F.conv_transpose1d, ((2, 4, 9), (4, 6, 3))),
    "convolution backward": (
        lambda x, w: _convolution_backward(x, w, transposed=False),
        ((2, 4, 9), (6, 4, 3)),
    ),
    "transposed convolution backward": (
        lambda x, w: _convolution_backward(x, w, transposed=True),
        ((2, 4, 9), (4, 6, 3)),
    ),
}

SIZES = {
    "attention": (
        lambda q: F.scaled_dot_product_attention(q, q, q),
        ((2, 3, 5, 8),),
        2 * (2 * 3 * 5 * 5 * 8),
    ),
    "attention backward": (_attention_backward, ((2, 3, 5, 8),), 7 * (2 * 3 * 5 * 5 * 8)),
    "convolution backward without a gradient of the input": (
        lambda x, w: _convolution_backward(x, w, transposed=False, first=False),
        ((2, 4, 9), (6, 4, 3)),
        3 * (2 * 6 * 7 * 4 * 3),
    ),
    "inverse": (torch.linalg.inv, ((3, 5, 5),), 3 * 5**3),
    "solve": (torch.linalg.solve, ((5, 5), (5, 2)), 5**3 + 5 * 5 * 2),
    "triangular": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
        ((5, 5), (5, 2)),
        5 * 5 * 2,
    ),
    "distances": (lambda x, y: torch.cdist(x, y, p=1), ((6, 3), (4, 3)), 6 * 4 * 3),
}
"""Functions, shapes of their arguments, and their multiplications."""


def _counted(function: Callable[..., Any], *arguments: torch.Tensor) -> int:
    graph = make_fx(function, tracing_mode="symbolic")(*arguments)
    hints, total = _hints(graph), 0
    for node in graph.graph.nodes:
        found = multiplications(node)
        if found is not None:
            total += int(found if isinstance(found, int) else found.subs(hints))
    return total


def _hints(graph: torch.fx.GraphModule) -> dict[Any, int]:
    """The sizes that a graph was traced with, by symbol."""
    for node in graph.graph.find_nodes(op="placeholder"):
        for size in node.meta["val"].shape:
            if isinstance(size, torch.SymInt):
                return dict(size.node.shape_env.backed_var_to_val)
    return {}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_torch_counts_them(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    arguments = [torch.randn(shape) for shape in shapes]
    counter = FlopCounterMode(display=False)
    with counter:
        function(*arguments)
    assert counter.get_total_flops() == 2 * _counted(function, *arguments)


@pytest.mark.parametrize("name", SIZES)
def test_of_what_torch_does_not_count(name: str) -> None:
    function, shapes, expected = SIZES[name]
    assert _counted(function, *map(torch.randn, shapes)) == expected
