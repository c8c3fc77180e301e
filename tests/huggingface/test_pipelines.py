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
    BertModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
    pipeline,
)

from tests.huggingface.helpers import WORDS, bert, gpt2, on_host, tokenizer

pytestmark = pytest.mark.usefixtures("fresh")


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


def image() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8))


def text() -> dict[str, Any]:
    return {"tokenizer": tokenizer()}


def images() -> dict[str, Any]:
    """The processor that needs no torchvision."""
    return {"image_processor": ViTImageProcessorPil(size={"height": 32, "width": 32})}


TASKS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]], Any, dict[str, Any]]] = {
    "fill-mask": (lambda: bert(BertForMaskedLM), text, "the cat [MASK] on the mat", {}),
    "text-classification": (
        lambda: bert(BertForSequenceClassification, num_labels=3),
        text,
        ["the cat sat", "a dog ran home"],
        {"batch_size": 2},
    ),
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
