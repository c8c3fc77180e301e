"""Models whose parameters are divided in the tests."""

from __future__ import annotations

import torch
from torch import nn

from pjrt_bridge.torch_interop.sharding import Mesh, mark_sharding


class Mlp(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Block(nn.Module):
    """A block of GPT-2: attention, then two layers, each behind a normalization."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        y = self.first(x)
        query, key, value = (
            layer(y).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    """A stack of blocks between an embedding and a head."""

    def __init__(self, blocks: int = 1, width: int = 16, heads: int = 4, words: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(blocks)])
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.last(self.blocks(self.embedding(ids))))


COLUMNS = ("query", "key", "value", "up")
ROWS = ("out", "down")


def divide_layers(model: nn.Module, mesh: Mesh, axis: str = "tp") -> None:
    """Megatron's plan: columns of the first product, rows of the second; the rest is whole."""
    for name, parameter in model.named_parameters():
        *_, layer, kind = ("", *name.split("."))
        if layer in COLUMNS:
            mark_sharding(parameter, mesh, (axis,))
        elif layer in ROWS and kind == "weight":
            mark_sharding(parameter, mesh, (None, axis))
        else:
            mark_sharding(parameter, mesh, ())


def divide_states(model: nn.Module, mesh: Mesh, axis: str = "dp") -> None:
    """Each parameter over an axis, as FSDP has them: its first dimension that divides."""
    size = mesh.grid.sizes[axis]
    for parameter in model.parameters():
        at = next((at for at, n in enumerate(parameter.shape) if n % size == 0), None)
        spec = [axis if dim == at else None for dim in range(parameter.dim())]
        mark_sharding(parameter, mesh, spec)
