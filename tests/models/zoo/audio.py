"""Models of speech and of series."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.zoo.building import NAMES, Builder, Made, config, ids, model
from tests.models.zoo.scale import long
from tests.models.zoo.translators import LAYERS

SPEECH = {
    **NAMES,
    "conv_dim": (16, 16),
    "conv_stride": (4, 2),
    "conv_kernel": (8, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
}


def whisper() -> Made:
    found = config(
        "Whisper", **LAYERS, num_mel_bins=8, max_source_positions=long(16), max_target_positions=16
    )
    made = model("WhisperForConditionalGeneration", found)
    return made, {"input_features": torch.randn(2, 8, long(32)), "labels": ids(10)}


def transcriber(name: str, **values: Any) -> Builder:
    """Speech to text with a CTC loss."""

    def build() -> Made:
        made = model(f"{name}ForCTC", config(name, **{**SPEECH, **values}))
        return made, {"input_values": torch.randn(2, long(400)), "labels": ids(6)}

    return build


def hubert() -> Made:
    made = model("HubertModel", config("Hubert", **SPEECH))
    return made, {"input_values": torch.randn(2, long(400))}


def patchtst() -> Made:
    found = config(
        "PatchTST",
        num_input_channels=3,
        context_length=long(16),
        patch_length=4,
        patch_stride=4,
        prediction_length=4,
        d_model=32,
        num_attention_heads=4,
        num_hidden_layers=1,
        ffn_dim=48,
    )
    made = model("PatchTSTForPrediction", found)
    return made, {"past_values": torch.randn(2, long(16), 3), "future_values": torch.randn(2, 4, 3)}


MODELS: dict[str, Builder] = {
    "whisper": whisper,
    "wav2vec2": transcriber("Wav2Vec2"),
    "hubert": hubert,
    "patchtst": patchtst,
}
