"""Models that take noise from images, with those that make images of what they see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch

from tests.models.zoo.building import Builder, Made
from tests.models.zoo.scale import grown, side, wide


def unet() -> Made:
    made = diffusers.UNet2DConditionModel(
        sample_size=side(8),
        block_out_channels=(wide(16), wide(32)),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=wide(16),
        attention_head_dim=wide(8),
    )
    return made, {
        "sample": torch.randn(2, 4, side(8), side(8)),
        "timestep": torch.tensor([3, 500]),
        "encoder_hidden_states": torch.randn(2, 6, wide(16)),
    }


def autoencoder() -> Made:
    made = diffusers.AutoencoderKL(
        block_out_channels=(wide(8), wide(16)),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        norm_num_groups=4,
        latent_channels=4,
        sample_size=side(16),
    )
    return made, {"sample": torch.randn(2, 3, side(16), side(16))}


def transformer(name: str, inputs: Callable[[], dict[str, Any]], **values: Any) -> Builder:
    """A transformer of diffusers by the name of its class."""

    def build() -> Made:
        made = getattr(diffusers, name)(num_layers=1, **grown({"attention_head_dim": 8, **values}))
        for module in made.modules():
            if hasattr(module, "dropout_prob"):
                module.dropout_prob = 0.0  # of the class that an image is to have
        return made, inputs()

    return build


def pictures() -> dict[str, torch.Tensor]:
    """Noisy images, and how far each of them is."""
    return {
        "hidden_states": torch.randn(2, 4, side(8), side(8)),
        "timestep": torch.tensor([3, 500]),
    }


MODELS: dict[str, Builder] = {
    "unet-condition": unet,
    "autoencoder-kl": autoencoder,
    "dit": transformer(
        "DiTTransformer2DModel",
        lambda: {**pictures(), "class_labels": torch.tensor([1, 5])},
        num_attention_heads=4,
        in_channels=4,
        out_channels=4,
        sample_size=8,
        num_embeds_ada_norm=10,
        norm_num_groups=4,
    ),
    "pixart": transformer(
        "PixArtTransformer2DModel",
        lambda: {
            **pictures(),
            "encoder_hidden_states": torch.randn(2, 6, wide(16)),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
        num_attention_heads=4,
        in_channels=4,
        out_channels=8,
        sample_size=8,
        cross_attention_dim=32,
        caption_channels=16,
        norm_num_groups=4,
        use_additional_conditions=False,
    ),
    "flux": transformer(
        "FluxTransformer2DModel",
        lambda: {
            "hidden_states": torch.randn(2, side(4) ** 2, 4),
            "timestep": torch.tensor([0.25, 0.75]),
            "encoder_hidden_states": torch.randn(2, 6, wide(16)),
            "pooled_projections": torch.randn(2, wide(16)),
            "img_ids": torch.randn(side(4) ** 2, 3),
            "txt_ids": torch.randn(6, 3),
        },
        num_attention_heads=4,
        num_single_layers=1,
        in_channels=4,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=(2, 4, 2),
    ),
    "sd3": transformer(
        "SD3Transformer2DModel",
        lambda: {
            **pictures(),
            "encoder_hidden_states": torch.randn(2, 6, wide(16)),
            "pooled_projections": torch.randn(2, wide(16)),
        },
        num_attention_heads=4,
        in_channels=4,
        out_channels=4,
        sample_size=8,
        joint_attention_dim=16,
        caption_projection_dim=32,
        pooled_projection_dim=16,
        pos_embed_max_size=8,
    ),
}
