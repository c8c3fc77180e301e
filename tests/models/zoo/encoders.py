"""Encoders of text."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.zoo.building import NAMES, Builder, Made, config, ids, model, text

SORTS = {"num_labels": 3, "problem_type": "single_label_classification"}

DISENTANGLED = {
    "relative_attention": True,
    "position_buckets": 8,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
}


def classifier(name: str, **values: Any) -> Builder:
    """Sorts sentences into three sorts."""

    def build() -> Made:
        made = model(
            f"{name}ForSequenceClassification", config(name, **{**NAMES, **SORTS, **values})
        )
        return made, {**text(), "labels": torch.tensor([0, 2])}

    return build


def filling(name: str, **values: Any) -> Builder:
    """Fills gaps in sentences."""

    def build() -> Made:
        made = model(f"{name}ForMaskedLM", config(name, **{**NAMES, **values}))
        return made, {**text(), "labels": ids()}

    return build


MODELS: dict[str, Builder] = {
    "bert": classifier("Bert"),
    "roberta": filling("Roberta", max_position_embeddings=40),
    "deberta-v2": classifier("DebertaV2", **DISENTANGLED),
    "electra": classifier("Electra", embedding_size=16),
    "modernbert": filling("ModernBert", local_attention=8, cls_token_id=1, sep_token_id=2),
    "albert": classifier("Albert", embedding_size=16),
    "distilbert": filling("DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=48),
    "fnet": filling("FNet"),
}
