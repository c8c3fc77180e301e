"""Compiled functions beside the same ones in eager mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

TOLERANCE = {torch.bfloat16: 2.0**-6, torch.float32: 2e-5, torch.float64: 1e-12}
"""In units of the largest element. Other types have to be equal."""


def compare(function: Callable[..., Any], *arguments: Any, train: bool = False) -> None:
    """A compiled function gives what eager gives, and the same gradients.

    Args:
        function: a module or another callable.
        arguments: tensors keep their strides.
        train: whether gradients are compared, of tensors and of parameters.
    """
    arguments = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, arguments)
    own, ours = copy.deepcopy((function, arguments)) if train else (function, arguments)
    compiled = torch.compile(own, backend="pjrt", options={"fallback": "error"}, dynamic=False)
    sides = ((function, arguments), (own, ours)) if train else ()
    given = [_differentiable(tree) for tree in sides]
    expected, found = function(*arguments), compiled(*ours)
    pairs = list(zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True))
    if train:
        torch.manual_seed(1)
        seeds = [torch.randn_like(right) for _, right in pairs]
        wanted = torch.autograd.grad([right for _, right in pairs], given[0], seeds)
        grads = torch.autograd.grad([left for left, _ in pairs], given[1], seeds)
        pairs += zip(grads, wanted, strict=True)
    for left, right in pairs:
        assert_close(left, right)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal in shape, element type, and in numbers as far as sums in another order are."""
    finite = expected.detach().double()
    finite = finite[finite.isfinite()]
    largest = max(float(finite.abs().max()) if finite.numel() else 0.0, 1e-3)
    atol = TOLERANCE.get(expected.dtype, 0.0) * largest
    torch.testing.assert_close(found, expected, rtol=0, atol=atol, equal_nan=True)


def _differentiable(tree: tuple[Any, tuple[Any, ...]]) -> list[torch.Tensor]:
    function, arguments = tree
    leaves = [x for x in arguments if isinstance(x, torch.Tensor) and x.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_()
    parameters = function.parameters() if isinstance(function, torch.nn.Module) else ()
    return [*leaves, *parameters]
