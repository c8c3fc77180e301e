"""Arguments whose strides change while their sizes do not: slices of tensors that grow.

Such are the keys and values of a sliding window, a part of as many as the prompt has. A program is
made for known strides, so each new stride would need one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from pjrt_bridge.runtime.dispatch.value_spec import has_gaps
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.bind.sizes import stands_for_itself
from pjrt_bridge.torch_interop.nodes import is_mutation
from pjrt_bridge.torch_interop.passes.aliases.gaps import with_strides

_ANY = 2
"""Given for a stride that nothing reads; torch takes symbols to be neither 0 nor 1."""


class ChangingStrides:
    """Makes calls of a symbolic graph alike that differ in such strides alone.

    Arguments that the graph writes into, returns, or saves for its backward pass stay as they are.

    Args:
        tensors: positions of tensors whose strides are not decided by their sizes.
        numbers: positions of strides that the graph takes as numbers, and does not read.
    """

    def __init__(self, tensors: Sequence[int], numbers: Sequence[int]) -> None:
        self._tensors = tensors
        self._numbers = numbers

    @staticmethod
    def of(graph: fx.Graph) -> ChangingStrides | None:
        """The changing strides of a functional graph; None where there are none."""
        if any("as_strided" in str(node.target) for node in graph.nodes):
            # It reads the memory of a tensor, whatever the tensor's strides are.
            return None
        tensors, numbers = [], []
        placeholders = graph.find_nodes(op="placeholder")
        sizes = {symbol for node in placeholders for symbol in _symbols(_shape(node))}
        for position, node in enumerate(placeholders):
            promise = compat.promise(node)
            if not isinstance(promise, torch.Tensor):
                if not node.users and set(_symbols([promise])) - sizes:
                    numbers.append(position)
            elif promise.layout is torch.strided:
                kept = any(user.op == "output" or is_mutation(user) for user in node.users)
                if not kept and set(_symbols(promise.stride())) - set(_symbols(promise.shape)):
                    tensors.append(position)
        return ChangingStrides(tensors, numbers) if tensors else None

    def remove(self, arguments: list[Any]) -> None:
        """Put copies without gaps into the place of the arguments of a call."""
        for position in self._tensors:
            tensor = arguments[position]
            if has_gaps(tensor.shape, tensor.stride()) and stands_for_itself(tensor):
                with torch.no_grad():
                    arguments[position] = with_strides(tensor, _without_gaps(tensor))
        for position in self._numbers:
            arguments[position] = _ANY


def _without_gaps(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides in the order of a tensor's own, as operators give to what they make of it."""
    own = tensor.stride()
    strides, step = list(own), 1
    for dim in sorted(range(tensor.dim()), key=lambda dim: (own[dim], -dim)):
        strides[dim] = step
        step *= tensor.shape[dim]
    return tuple(strides)


def _shape(node: fx.Node) -> Sequence[Any]:
    promise = compat.promise(node)
    return promise.shape if isinstance(promise, torch.Tensor) else ()


def _symbols(sizes: Sequence[Any]) -> Iterator[Any]:
    for size in sizes:
        if compat.is_symbolic(size):
            yield from compat.expression(size).free_symbols
