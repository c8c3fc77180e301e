"""Models that turn one text into another."""

from __future__ import annotations

from typing import Any

from tests.models.zoo.building import NAMES, Builder, Made, config, ids, model, text

LAYERS = {
    **NAMES,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "decoder_start_token_id": 1,
    "use_cache": False,
}


def translator(name: str, kind: str = "ForConditionalGeneration", **values: Any) -> Builder:
    """An encoder with a decoder and a loss."""

    def build() -> Made:
        made = model(name + kind, config(name, **values))
        return made, {**text(), "labels": ids(10)}

    return build


MODELS: dict[str, Builder] = {
    "t5": translator(
        "T5",
        **NAMES,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=1,
        num_heads=4,
        decoder_start_token_id=0,
        relative_attention_num_buckets=8,
        use_cache=False,
    ),
    "bart": translator("Bart", **LAYERS),
    "marian": translator("Marian", "MTModel", **LAYERS),
    "pegasus": translator("Pegasus", **LAYERS),
}
