"""Models that read texts, sounds or pictures, and write texts: the same tokens as eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from pjrt_bridge.torch_interop import compiled_graphs
from tests.huggingface.helpers import gpt2_config, on_host

pytestmark = pytest.mark.usefixtures("fresh")

_HALVES: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


def t5() -> T5ForConditionalGeneration:
    config = T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, dropout_rate=0.0
    )
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration(config)


def bart() -> BartForConditionalGeneration:
    sizes = {**_HALVES, "vocab_size": 97, "max_position_embeddings": 64}
    return BartForConditionalGeneration(BartConfig(**sizes, forced_eos_token_id=None))


def whisper() -> WhisperForConditionalGeneration:
    config = WhisperConfig(
        **_HALVES,
        vocab_size=97,
        max_source_positions=50,
        max_target_positions=40,
        num_mel_bins=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = WhisperForConditionalGeneration(config)
    model.generation_config.suppress_tokens = None
    model.generation_config.begin_suppress_tokens = None
    model.generation_config.forced_decoder_ids = None
    return model


def captions() -> VisionEncoderDecoderModel:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    encoder = ViTConfig(**sizes, intermediate_size=64, image_size=16, patch_size=8)
    decoder = gpt2_config(add_cross_attention=True, is_decoder=True)
    both = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = VisionEncoderDecoderModel(both)
    model.generation_config.decoder_start_token_id = 1
    model.generation_config.pad_token_id = 0
    return model


def qwen() -> Qwen2VLForConditionalGeneration:
    text = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [1, 1, 2],
        },
        "bos_token_id": 1,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4}
    config = Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=90,
        video_token_id=91,
        vision_start_token_id=92,
        vision_end_token_id=93,
    )
    return Qwen2VLForConditionalGeneration(config)


def words(length: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, 97, (2, length))}


def sounds(batch: int) -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(batch, 16, 100)}


def pictures(batch: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(batch, 3, 16, 16)}


def picture_among_words(length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 80, (1, length))
    ids[:, 1], ids[:, 2:6] = 92, 90
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(16, 3 * 2 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": (ids == 90).int(),
    }


CASES: dict[str, tuple[Callable[[], Any], list[dict[str, Any]], dict[str, Any]]] = {
    "t5": (t5, [words(length) for length in (7, 11, 9, 14)], {"do_sample": False}),
    "bart": (bart, [words(length) for length in (7, 11, 9)], {"num_beams": 3}),
    "whisper": (whisper, [sounds(batch) for batch in (1, 2)], {}),
    "captions": (captions, [pictures(batch) for batch in (1, 2)], {"num_beams": 2}),
    "qwen": (qwen, [picture_among_words(length) for length in (9, 12)], {"do_sample": False}),
}
QUICK = ("t5",)


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
def test_generate(name: str) -> None:
    make, inputs, arguments = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    expected = [model.generate(**each, max_new_tokens=8, **arguments) for each in inputs]
    model.forward = torch.compile(model.forward, backend="pjrt")
    for each, tokens in zip(inputs, expected, strict=True):
        found = model.generate(**each, max_new_tokens=8, **arguments)
        assert found.tolist() == tokens.tolist()
    assert not on_host()


def test_training_with_texts_of_any_length() -> None:
    torch.manual_seed(0)
    model = t5()
    run = torch.compile(lambda texts, labels: model(texts, labels=labels).loss, backend="pjrt")
    for source, target in ((7, 5), (11, 6), (20, 12), (19, 10), (18, 11)):
        texts, labels = torch.randint(3, 97, (2, source)), torch.randint(3, 97, (2, target))
        labels[0, -2:] = -100
        found = []
        for compute in (run, lambda texts, labels: model(texts, labels=labels).loss):
            model.zero_grad()
            loss = compute(texts, labels)
            loss.backward()
            found.append([loss.detach(), *(item.grad for item in model.parameters())])
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert not on_host()
    assert len(compiled_graphs()) <= 8
