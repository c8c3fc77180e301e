"""A language model of a few layers, with names that plans of tensor parallelism refer to."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 50
WIDTH = 32


class Block(nn.Module):
    def __init__(self, width: int = WIDTH, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        # Under tensor parallelism each process has a part of the heads.
        q, k, v = (
            part(y).unflatten(-1, (-1, x.shape[-1] // self.heads)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, VOCABULARY, (4, 8), generator=generator)


def loss_of(result: Tensor, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(result[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
