"""Pipelines of diffusers with compiled networks: the same images as eager."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    DiTPipeline,
    DiTTransformer2DModel,
    UNet2DModel,
)

from tests.huggingface.helpers import on_host

pytestmark = pytest.mark.usefixtures("fresh")


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def with_unet() -> Any:
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    pipeline = DDPMPipeline(unet.eval(), DDPMScheduler(num_train_timesteps=20))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.mark.slow
def test_a_unet() -> None:
    def images(pipeline: Any) -> np.ndarray:
        made: np.ndarray = pipeline(
            batch_size=2, num_inference_steps=3, generator=seeded(), output_type="np"
        ).images
        return made

    pipeline = with_unet()
    pipeline.unet.compile(backend="pjrt")
    np.testing.assert_allclose(images(pipeline), images(with_unet()), atol=1e-5)
    assert not on_host()


def with_transformer() -> Any:
    torch.manual_seed(0)
    transformer = DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
    )
    decoder = AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=16,
    )
    pipeline = DiTPipeline(transformer.eval(), decoder.eval(), DDIMScheduler())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.mark.slow
@pytest.mark.parametrize("regional", [False, True])
def test_a_transformer(regional: bool) -> None:
    def images(pipeline: Any) -> np.ndarray:
        made: np.ndarray = pipeline(
            class_labels=[1, 2], num_inference_steps=3, generator=seeded(), output_type="np"
        ).images
        return made

    pipeline = with_transformer()
    if regional:
        pipeline.transformer._repeated_blocks = ["BasicTransformerBlock"]
        pipeline.transformer.compile_repeated_blocks(backend="pjrt")
    else:
        pipeline.transformer.compile(backend="pjrt")
        pipeline.vae.decode = torch.compile(pipeline.vae.decode, backend="pjrt")
    np.testing.assert_allclose(images(pipeline), images(with_transformer()), atol=1e-5)
    assert not on_host()
