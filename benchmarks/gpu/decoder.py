"""A decoder as Llama's, in plain PyTorch, so that all sides trace the same operators."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """Of the decoder.

    Attributes:
        layers: how many.
        width: numbers in a token's vector.
        inner: numbers in a feed-forward network's.
        heads: of queries.
        groups: of keys and values.
        tokens: the decoder knows.
        length: positions, at most.
    """

    layers: int = 16
    width: int = 2048
    inner: int = 5632
    heads: int = 32
    groups: int = 8
    tokens: int = 32_000
    length: int = 512


class _Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.size = sizes.width // sizes.heads
        width, inner, narrow = sizes.width, sizes.inner, sizes.groups * self.size
        self.norms = nn.ModuleList([nn.RMSNorm(width, eps=1e-5) for _ in range(2)])
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, narrow, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def project(
        self, x: torch.Tensor, rotation: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, each (batch, heads or groups, length, size)."""
        x = self.norms[0](x)
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        return _rotated(q, rotation), _rotated(k, rotation), v

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """What all heads see, (batch, length, width); without a mask, what came before."""
        shared = self.sizes.heads // self.sizes.groups
        k, v = (x[:, :, None].expand(-1, -1, shared, -1, -1).flatten(1, 2) for x in (k, v))
        seen = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None
        )
        return self.out(seen.transpose(1, 2).flatten(2))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        """The feed-forward network's part."""
        x = self.norms[1](x)
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def _rotated(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotary positions; the rotation is (2, length, size), cosines and sines."""
    first, second = x.chunk(2, dim=-1)
    return x * rotation[0] + torch.cat((-second, first), dim=-1) * rotation[1]


class Decoder(nn.Module):
    """Whole texts: tokens (batch, length) to logits (batch, length, tokens)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.tokens, sizes.width)
        self.layers = nn.ModuleList([_Layer(sizes) for _ in range(sizes.layers)])
        self.norm = nn.RMSNorm(sizes.width, eps=1e-5)
        self.head = nn.Linear(sizes.width, sizes.tokens, bias=False)
        size = sizes.width // sizes.heads
        self.register_buffer("rotations", torch.empty(2, sizes.length, size))
        self.rotations: torch.Tensor

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of all positions."""
        x, rotation = self.embedding(tokens), self.rotations[:, : tokens.shape[1]]
        for layer in self.layers:
            assert isinstance(layer, _Layer)
            x = x + layer.attend(*layer.project(x, rotation), None)
            x = x + layer.feed(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class Step(Decoder):
    """One token of each text after the other, with a cache of fixed size."""

    def __init__(self, sizes: Sizes, batch: int) -> None:
        super().__init__(sizes)
        shape = batch, sizes.groups, sizes.length, sizes.width // sizes.heads
        for number in range(sizes.layers):
            for name in ("keys", "values"):
                self.register_buffer(f"{name}{number}", torch.empty(shape))

    def forward(  # type: ignore[override]
        self, tokens: torch.Tensor, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens (batch, 1) and where they are (1,) to the next tokens, the next position, logits.

        The position after the last is the first again.
        """
        x = self.embedding(tokens)
        rotation = self.rotations.index_select(1, position)
        mask = torch.arange(self.sizes.length, device=tokens.device)[None] <= position[:, None]
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, _Layer)
            q, k, v = layer.project(x, rotation)
            keys = self.get_buffer(f"keys{number}").index_copy_(2, position, k)
            values = self.get_buffer(f"values{number}").index_copy_(2, position, v)
            x = x + layer.attend(q, keys, values, mask)
            x = x + layer.feed(x)
        logits = self.head(self.norm(x))[:, -1].float()
        following = logits.argmax(-1, keepdim=True).to(tokens.dtype)
        return following, (position + 1) % self.sizes.length, logits


def decoder(sizes: Sizes, batch: int | None = None) -> Decoder:
    """A decoder with random weights in float32; with a cache if there is a batch.

    The numbers of weights repeat a million that were drawn: drawing a billion takes long.
    """
    with torch.device("meta"):
        made = Decoder(sizes) if batch is None else Step(sizes, batch)
    made = made.to_empty(device="cpu").eval()
    drawn = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))
    at = 0
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1)
                continue
            begun = drawn.roll(at)
            copies = -(-parameter.numel() // len(begun))
            numbers = begun.repeat(copies)[: parameter.numel()].view_as(parameter)
            parameter.copy_(numbers).mul_(parameter.shape[1] ** -0.5)
            at += 7919
        for buffer in made.buffers():
            buffer.zero_()
        made.rotations.copy_(_rotations(sizes))
    return made


def _rotations(sizes: Sizes) -> torch.Tensor:
    size = sizes.width // sizes.heads
    speeds = 10_000.0 ** -(torch.arange(0, size, 2) / size)
    angles = torch.arange(sizes.length)[:, None] * speeds
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin()))
