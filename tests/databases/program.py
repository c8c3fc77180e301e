"""What is run again and again: in eager, compiled, on the device, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from tests.comparing import Tolerance
from tests.sweeping.comparing import Ran

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """What eager makes of a function."""
    return function


@dataclass(frozen=True)
class Manner:
    """How a program is run.

    Attributes:
        compile: makes what is called of a function.
        device: where tensors are.
        wide: in double precision, for the oracle of what is rounded.
        seed: of what is random in the calls; samples and weights are the same in every run.
    """

    compile: Compile = as_it_is
    device: str = "cpu"
    wide: bool = False
    seed: int = 0

    def widened(self) -> Manner:
        """The same in double precision."""
        return replace(self, wide=True)

    def put(self, value: Any) -> Any:
        """The tensors of a structure where they belong, in memory of their own."""
        return pytree.tree_map_only(torch.Tensor, self._put, value)

    def dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The element type that stands for another one."""
        return WIDER.get(dtype, dtype) if self.wide else dtype

    def _put(self, tensor: torch.Tensor) -> torch.Tensor:
        found = tensor.detach().clone().to(self.dtype(tensor.dtype)).to(self.device)
        return found.requires_grad_(tensor.requires_grad)


WIDER = {
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


class DatabaseProgram(Protocol):
    """Something to run."""

    def run(self, manner: Manner) -> Ran:
        """What it gives, with its tensors on the host."""

    def parts(self) -> list[DatabaseProgram]:
        """Programs that show by themselves what this one shows in one; none: it is one part."""

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """By how much numbers may differ."""


def home(value: Any) -> Any:
    """A structure with its tensors on the host, as they were when the program ended."""
    return pytree.tree_map_only(torch.Tensor, _home, value)


def _home(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().requires_grad_(tensor.requires_grad)


def tangents(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the gradients of outputs are asked for with, the same in every run."""
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(out.shape, dtype=torch.float64, generator=generator)
        .to(out.dtype)
        .to(out.device)
        for out in outputs
    ]
