"""Symbolic sizes and numbers in the promises of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.extents import Symbol


def symbolic_sizes(promise: Any) -> Iterator[tuple[int | None, Any]]:
    """Symbolic sizes of tensors, each with its dimension, and symbolic numbers."""
    if isinstance(promise, (tuple, list)):
        for item in promise:
            yield from symbolic_sizes(item)
    elif isinstance(promise, torch.Tensor):
        for dim, size in enumerate(promise.shape):
            if compat.is_symbolic(size):
                yield dim, compat.expression(size)
    elif compat.is_symbolic(promise):
        yield None, compat.expression(promise)


def number_of(node: fx.Node) -> Any:
    """The expression of a symbolic number; None for anything else."""
    promise = compat.promise(node)
    is_number = compat.is_symbolic(promise) and not isinstance(promise, torch.Tensor)
    return compat.expression(promise) if is_number else None


def free_symbols(size: Any) -> set[Symbol]:
    """The symbols that a size is calculated from."""
    found: set[Symbol] = getattr(size, "free_symbols", set())
    return found
