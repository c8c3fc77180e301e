"""Models of images: what is on them, where, and which pixels it covers."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.zoo.building import NAMES, Builder, Made, config, images, model
from tests.models.zoo.encoders import SORTS

PATCHES = {**NAMES, "image_size": 32, "patch_size": 8}
STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
SEGFORMER = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "hidden_sizes": [16, 32],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [2, 4],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 16,
}
DETR = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_queries": 6,
    "num_labels": 3,
}


def classifier(name: str, size: int = 32, **values: Any) -> Builder:
    """Sorts images into three sorts."""

    def build() -> Made:
        made = model(f"{name}ForImageClassification", config(name, **values, **SORTS))
        return made, {"pixel_values": images(size), "labels": torch.tensor([0, 2])}

    return build


def pixels(name: str, **values: Any) -> Builder:
    """Sorts pixels into three sorts."""

    def build() -> Made:
        made = model(f"{name}ForSemanticSegmentation", config(name, **values, num_labels=3))
        labels = torch.randint(0, 3, (2, 32, 32))
        labels[:, :4] = 255  # ignored
        return made, {"pixel_values": images(), "labels": labels}

    return build


def backbone(stages: int) -> Any:
    """What models look through that look at images in several sizes."""
    names = [f"stage{number + 1}" for number in range(stages)]
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32][:stages], "depths": [1] * stages}
    return config("ResNet", **sizes, layer_type="basic", out_features=names)


def detr() -> Made:
    found = config("Detr", **DETR, backbone_config=backbone(2), use_timm_backbone=False)
    return model("DetrForObjectDetection", found), {"pixel_values": images()}


def yolos() -> Made:
    sizes = {**PATCHES, "image_size": [32, 32], "num_detection_tokens": 5, "num_labels": 3}
    return model("YolosForObjectDetection", config("Yolos", **sizes)), {"pixel_values": images()}


def maskformer() -> Made:
    found = config(
        "MaskFormer",
        fpn_feature_size=32,
        mask_feature_size=32,
        num_labels=3,
        backbone_config=backbone(4),
        decoder_config=config("Detr", **DETR),
    )
    return model("MaskFormerForInstanceSegmentation", found), {"pixel_values": images()}


def mask2former() -> Made:
    found = config(
        "Mask2Former",
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=24,
        dim_feedforward=24,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        num_queries=5,
        num_labels=3,
        backbone_config=backbone(4),
    )
    return model("Mask2FormerForUniversalSegmentation", found), {"pixel_values": images()}


def sam() -> Made:
    eyes = {
        "hidden_size": 32,
        "output_channels": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 4,
        "window_size": 4,
        "global_attn_indexes": [1],
        "mlp_dim": 48,
        "num_pos_feats": 8,
    }
    prompts = {
        "hidden_size": 16,
        "image_size": 32,
        "patch_size": 4,
        "image_embedding_size": 8,
        "mask_input_channels": 4,
    }
    mask = {
        "hidden_size": 16,
        "mlp_dim": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "iou_head_hidden_dim": 16,
    }
    found = config(
        "Sam",
        vision_config=config("SamVision", **eyes),
        prompt_encoder_config=config("SamPromptEncoder", **prompts),
        mask_decoder_config=config("SamMaskDecoder", **mask),
    )
    points = torch.tensor([[[[4.0, 9.0]]], [[[20.0, 13.0]]]])
    return model("SamModel", found), {"pixel_values": images(), "input_points": points}


MODELS: dict[str, Builder] = {
    "vit": classifier("ViT", **PATCHES),
    "deit": classifier("DeiT", **PATCHES),
    "beit": classifier("Beit", **PATCHES, use_relative_position_bias=True),
    "dinov2": classifier("Dinov2", **PATCHES, mlp_ratio=2),
    "swin": classifier("Swin", **SWIN),
    "convnext": classifier("ConvNext", **STAGES, layer_scale_init_value=1.0),
    "resnet": classifier("ResNet", **STAGES, layer_type="bottleneck"),
    "mobilenet-v2": classifier("MobileNetV2", size=64, depth_multiplier=0.1),
    "regnet": classifier("RegNet", **STAGES, groups_width=8, layer_type="y"),
    "efficientnet": classifier(
        "EfficientNet",
        width_coefficient=0.25,
        depth_coefficient=0.25,
        image_size=32,
        hidden_dim=320,
        in_channels=[32, 16],
        out_channels=[16, 24],
        kernel_sizes=[3, 5],
        strides=[1, 2],
        num_block_repeats=[1, 1],
        expand_ratios=[1, 6],
        depthwise_padding=[],
    ),
    "detr": detr,
    "yolos": yolos,
    "segformer": pixels("Segformer", **SEGFORMER),
    "maskformer": maskformer,
    "mask2former": mask2former,
    "sam": sam,
}
