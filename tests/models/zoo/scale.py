"""How large the models of the zoo are made: as tests need them, or larger, for measuring.

A builder names the small sizes. What `wide`, `long` and `wider` are given is multiplied by the
factors of the scale that is set; by default they are 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Scale:
    """Factors of the sizes of a model and of its inputs.

    Attributes:
        width: of channels, of numbers in a token's vector.
        length: of texts, in tokens.
        side: of images, in pixels.
        batch: of how many inputs there are.
    """

    width: int = 1
    length: int = 1
    side: int = 1
    batch: int = 1


_scale = Scale()

_SUFFIXES = {
    "side": ("image_size", "image_embedding_size", "sample_size"),
    "length": (
        "max_position_embeddings",
        "max_target_positions",
        "local_attention",
        "sliding_window",
    ),
    "width": (
        "hidden_size",
        "hidden_sizes",
        "intermediate_size",
        "embedding_size",
        "feature_size",
        "output_channels",
        "axes_dims_rope",
        "mask_input_channels",
        "block_out_channels",
        "encoder_feedforward_dim",
        "dim_feedforward",
        "projection_size",
        "projection_dim",
        "embed_dim",
        "d_model",
        "d_kv",
        "d_ff",
        "ffn_dim",
        "ffn_hidden_size",
        "embed_proj_dim",
        "hidden_dim",
        "head_dim",
        "attention_dim",
        "caption_channels",
        "conv_dim",
        "mlp_dim",
        "num_pos_feats",
        "groups_width",
        "query_pre_attn_scalar",
    ),
}
"""Ends of the names, in configurations, of numbers that grow with each factor; the first that fits
counts."""

_EXACT = {"width": ("dim", "width_coefficient", "depth_multiplier")}


@contextmanager
def scaled(scale: Scale) -> Iterator[None]:
    """Set the scale for the models that are built meanwhile."""
    global _scale
    before, _scale = _scale, scale
    try:
        yield
    finally:
        _scale = before


def wide(size: int) -> int:
    """A number of channels."""
    return size * _scale.width


def long(size: int) -> int:
    """A number of tokens."""
    return size * _scale.length


def side(size: int) -> int:
    """A number of pixels in a row."""
    return size * _scale.side


def repeated(inputs: Any) -> Any:
    """Inputs of two, which builders give, so often as the scale says."""
    if _scale.batch == 1:
        return inputs
    return pytree.tree_map_only(
        torch.Tensor,
        lambda x: torch.cat([x] * _scale.batch) if x.dim() and x.shape[0] == 2 else x,
        inputs,
    )


def grown(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration, and of those within it, at the scale that is set."""
    return {name: _grown(name, value) for name, value in values.items()}


def _grown(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return grown(value)
    factor = _factor(name)
    if factor == 1 or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return value * factor
    if isinstance(value, (list, tuple)):
        return type(value)(_grown(name, item) for item in value)
    return value


def _factor(name: str) -> int:
    for kind, suffixes in _SUFFIXES.items():
        if name.endswith(suffixes) or name in _EXACT.get(kind, ()):
            return int(getattr(_scale, kind))
    return 1
