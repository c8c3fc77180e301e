"""Models of images and text."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.zoo.building import NAMES, WORDS, Builder, Made, config, images, model, text
from tests.models.zoo.scale import side

EYES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "projection_dim": 16,
}
READER = {**NAMES, "projection_dim": 16}


def contrastive(name: str, loss: bool = True, **values: Any) -> Builder:
    """Tells which text goes with which image."""

    def build() -> Made:
        found = config(
            name,
            text_config={**READER, **values},
            vision_config=dict(EYES),
            projection_dim=16,
        )
        return model(f"{name}Model", found), {
            **text(),
            "pixel_values": images(),
            "return_loss": loss,
        }

    return build


def blip() -> Made:
    found = config(
        "Blip",
        text_config={**READER, "encoder_hidden_size": 32, "is_decoder": True, "use_cache": False},
        vision_config=dict(EYES),
        projection_dim=16,
        image_text_hidden_size=16,
    )
    inputs = {**text(), "pixel_values": images()}
    made = model("BlipForConditionalGeneration", found)
    return made, {**inputs, "labels": inputs["input_ids"]}


def llava() -> Made:
    image, patches = WORDS - 1, side(4) ** 2
    found = config(
        "Llava",
        vision_config=config("CLIPVision", **EYES),
        text_config=config("Llama", **NAMES, use_cache=False),
        image_token_index=image,
        image_seq_length=patches,
        vision_feature_layer=-1,
    )
    words = torch.randint(3, image, (2, 8))
    tokens = torch.cat([torch.full((2, patches), image), words], dim=1)
    labels = tokens.masked_fill(tokens == image, -100)
    return model("LlavaForConditionalGeneration", found), {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": images(),
        "labels": labels,
        "use_cache": False,
    }


MODELS: dict[str, Builder] = {
    "clip": contrastive("CLIP"),
    "siglip": contrastive("Siglip", projection_size=32),
    "blip": blip,
    "llava": llava,
}
