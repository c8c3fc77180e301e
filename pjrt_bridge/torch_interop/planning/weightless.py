"""Copies of models without the memory of their weights, to trace what they compute."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pjrt_bridge.torch_interop.compat.devices.without_memory import WithoutMemory
from pjrt_bridge.torch_interop.exporting.optimizers import with_numbers


@dataclass(frozen=True)
class Weightless:
    """A copy of a model whose tensors have no memory, and are traced as tensors of the host.

    Attributes:
        model: the copy.
        optimizer: a copy over its parameters, where there is one.
        args: example arguments.
        kwargs: example arguments by name.
        tensors: makes more of them.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: WithoutMemory


def weightless(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Weightless:
    """Copy a model, its optimizer and example arguments, of any device, without their memory.

    Args:
        model: is not changed.
        optimizer: over parameters of the model, or None.
        args: example arguments, of which tensors count by shape and type.
        kwargs: example arguments by name.
    """
    tensors = WithoutMemory()
    held = [*model.parameters(), *model.buffers()]
    if optimizer is not None:
        held += [
            value
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ]
    copies: dict[int, Any] = {id(tensor): tensors.like(tensor) for tensor in held}
    # What is in `copies` is not copied again, so tied weights and the optimizer's stay the model's.
    # Nobody can read a number in a tensor while a program is traced.
    numbered = None if optimizer is None else with_numbers(optimizer)
    made, other = copy.deepcopy((model, numbered), copies)
    return Weightless(made, other, tensors.all_like(args), tensors.all_like(kwargs), tensors)
