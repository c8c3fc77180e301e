"""A model and how it is divided, for `pjrt-bridge plan`.

pjrt-bridge plan examples/planned.py:make --input f32[64,1024] --mesh tp=4 --mesh dp=2,tp=2
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel


class Perceptron(nn.Module):
    """Two layers, of which the hidden one is wide."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.up = nn.Linear(width, 16 * width)
        self.down = nn.Linear(16 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What comes in, and what the layers make of it."""
        return x + self.down(torch.relu(self.up(x)))


def make() -> tuple[nn.Module, dict[str, ParallelStyle]]:
    """The model, and torch's parallel styles by names of modules."""
    return Perceptron(), {"up": ColwiseParallel(), "down": RowwiseParallel()}
