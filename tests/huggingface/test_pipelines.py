"""`pipeline(...)` over compiled models: the same answers as over eager ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    pipeline,
)

from tests.huggingface.helpers import WORDS, bert, gpt2, on_host, tokenizer

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    # Dynamo's, about a function of transformers that asks for torch.distributed.
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`"),
]


def vit() -> ViTForImageClassification:
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=3,
    )
    return ViTForImageClassification(config).eval()


def wav2vec2() -> Wav2Vec2ForCTC:
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=(16, 16),
        conv_kernel=(10, 3),
        conv_stride=(5, 2),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
    )
    return Wav2Vec2ForCTC(config).eval()


def sounds() -> list[np.ndarray[Any, Any]]:
    """Of several lengths."""
    random = np.random.default_rng(0)
    return [random.normal(size=length).astype(np.float32) for length in (400, 733, 1200, 901)]


def image() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8))


def text() -> dict[str, Any]:
    return {"tokenizer": tokenizer()}


def images() -> dict[str, Any]:
    """The processor that needs no torchvision."""
    return {"image_processor": ViTImageProcessorPil(size={"height": 32, "width": 32})}


def speech() -> dict[str, Any]:
    return {**text(), "feature_extractor": Wav2Vec2FeatureExtractor(return_attention_mask=True)}


TASKS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]], Any, dict[str, Any]]] = {
    "fill-mask": (lambda: bert(BertForMaskedLM), text, "the cat [MASK] on the mat", {}),
    "text-classification": (
        lambda: bert(BertForSequenceClassification, num_labels=3),
        text,
        ["the cat sat", "a dog ran home"],
        {"batch_size": 2},
    ),
    "token-classification": (
        lambda: bert(BertForTokenClassification, num_labels=3),
        text,
        ["the cat sat", "a dog ran home and sat on the mat"],
        {"aggregation_strategy": "simple"},
    ),
    "automatic-speech-recognition": (wav2vec2, speech, sounds(), {}),
    "feature-extraction": (lambda: bert(BertModel), text, "the cat sat", {}),
    "text-generation": (
        lambda: gpt2(len(WORDS)),
        text,
        "the cat",
        {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static"},
    ),
    "image-classification": (vit, images, image(), {}),
}


QUICK = ("fill-mask", "feature-extraction")


@pytest.mark.parametrize(
    "task",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TASKS],
)
def test_tasks(task: str) -> None:
    make, processors, given, arguments = TASKS[task]
    expected = pipeline(task, model=make(), **processors())(given, **arguments)
    model = make()
    model.compile(backend="pjrt")
    found = pipeline(task, model=model, **processors())(given, **arguments)
    assert flat(found) == pytest.approx(flat(expected), abs=1e-5)
    assert not on_host()


def flat(answer: Any) -> dict[str, Any]:
    """The answer's texts and numbers by the places where they are."""
    if isinstance(answer, dict):
        items = answer.items()
    elif isinstance(answer, list):
        items = enumerate(answer)  # type: ignore[assignment]
    else:
        return {"": answer}
    return {f"{key}.{place}": value for key, inner in items for place, value in flat(inner).items()}
