"""Tensors without memory, which torch traces as tensors of the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree


class WithoutMemory:
    """Makes tensors without memory that take part in one tracing."""

    def __init__(self) -> None:
        # A model may hold tensors that are no parameters and no buffers.
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """One of the same shape, strides, element type and kind, whatever device it is of."""
        with self._mode:
            made = torch.empty_strided(
                tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="cpu"
            )
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(made, tensor.requires_grad)
        return made.requires_grad_(tensor.requires_grad)

    def all_like(self, tree: Any) -> Any:
        """A nesting with such tensors in the places of its own."""
        return pytree.tree_map_only(torch.Tensor, self.like, tree)

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Have no new tensor get memory."""
        with self._mode:
            yield
