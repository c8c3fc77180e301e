"""One token of a decoder with a cache of keys and values, for the family of kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.case import TorchWork

_WIDTH, _HEADS, _POSITIONS, _LAYERS = 512, 8, 512, 4
_SIZE = _WIDTH // _HEADS


def one_token(weights: str, batch: int, sharing: int = 1) -> TorchWork:
    """A step of a decoder of four layers that writes its keys and values to position 300.

    Args:
        weights: "f32", "bf16", or "int8": int8 with a scale for each row, computed in bf16.
        batch: sequences that get a token each.
        sharing: so many heads share one of the keys and values, which is repeated for them.
    """
    import torch
    from torch import nn

    kind = torch.float32 if weights == "f32" else torch.bfloat16
    linear: Callable[[int, int], nn.Module] = _quantized if weights == "int8" else nn.Linear

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH) for _ in range(2))
            self.inwards = linear(_WIDTH, _WIDTH + 2 * _WIDTH // sharing)
            self.outwards = linear(_WIDTH, _WIDTH)
            self.wide, self.narrow = linear(_WIDTH, 4 * _WIDTH), linear(4 * _WIDTH, _WIDTH)
            shape = (batch, _HEADS // sharing, _POSITIONS, _SIZE)
            self.register_buffer("keys", torch.randn(shape))
            self.register_buffer("values", torch.randn(shape))

        def forward(self, x: Any, position: Any, mask: Any) -> Any:
            heads = self.inwards(self.norms[0](x)).view(batch, 1, -1, _SIZE).transpose(1, 2)
            counts = (_HEADS, _HEADS // sharing, _HEADS // sharing)
            query, key, value = heads.split(counts, dim=1)
            self.keys.index_copy_(2, position, key)
            self.values.index_copy_(2, position, value)
            caches = (self._for_all_heads(cache) for cache in (self.keys, self.values))
            seen = nn.functional.scaled_dot_product_attention(query, *caches, attn_mask=mask)
            x = x + self.outwards(seen.transpose(1, 2).reshape(batch, 1, _WIDTH))
            return x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x))))

        def _for_all_heads(self, cache: Any) -> Any:
            if sharing == 1:
                return cache
            return cache[:, :, None].expand(-1, -1, sharing, -1, -1).flatten(1, 2)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(_LAYERS))

        def forward(self, x: Any, position: Any) -> Any:
            mask = (torch.arange(_POSITIONS) <= position)[None]
            for layer in self.layers:
                x = layer(x, position, mask)
            return x

    torch.manual_seed(0)
    inputs = (torch.randn(batch, 1, _WIDTH).to(kind), torch.tensor([300]))
    return TorchWork(Decoder().eval().to(kind), inputs)


def _quantized(inner: int, outer: int) -> Any:
    """A linear layer of int8 weights with a scale for each of its results."""
    import torch

    class Quantized(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randint(-127, 128, (outer, inner)).to(torch.int8))
            self.register_buffer("scale", torch.full((outer,), 0.5 / 127 / inner**0.5))

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.linear(x, self.weight.to(x.dtype)) * self.scale

    return Quantized()
