"""The memory in which arguments get their padding and results lose it; that of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pjrt_bridge.torch_interop.passes.lift_scalars import tensor_of
from pjrt_bridge.torch_interop.passes.padding.layouts import SizeValue, SymbolicLayout


class PaddingMemory:
    """The memory that a graph's tensors are in: here that of the host, in which they are copied.

    Attributes:
        device: of tensors that operators of the padded graph make of numbers; None: the host.
        fill: what is in the padding of arguments; None where that is not known.
    """

    device: torch.device | None = None
    fill: int | None = 0

    def takes(self, arguments: Sequence[Any]) -> bool:
        """Whether arguments can be padded."""
        return True

    def padded_size(self, argument: torch.Tensor, dim: int) -> int | None:
        """The size of a dimension of an argument that is there with padding; None for others."""
        return None

    def grow(
        self,
        layout: SymbolicLayout,
        tensor: torch.Tensor,
        actual: SizeValue,
        padded: SizeValue,
        *,
        written: bool,
    ) -> tuple[torch.Tensor, int]:
        """An argument with padding, and how many bytes were copied between host and device.

        Args:
            layout: of the argument.
            tensor: the argument; it is the result, too, where it has no padding.
            actual: sizes of the call.
            padded: sizes of its padded form.
            written: the graph writes into it.
        """
        made = layout.grow(tensor, actual, padded)
        return made, 0 if made is tensor else made.nbytes

    def cut(
        self, layout: SymbolicLayout, tensor: torch.Tensor, actual: SizeValue, padded: SizeValue
    ) -> tuple[torch.Tensor, int]:
        """A result without padding, and how many bytes were copied; see `SymbolicLayout.cut`."""
        return layout.cut(tensor, actual, padded)

    def number(self, value: Any, dtype: torch.dtype) -> torch.Tensor:
        """A number as a 0-d tensor."""
        return tensor_of(value, dtype)


HOST = PaddingMemory()
