"""Sentence embeddings of a compiled encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertModel

from tests.huggingface.helpers import bert, on_host, tokenizer

pytestmark = pytest.mark.usefixtures("fresh")

SENTENCES = ["the cat sat", "a dog ran home", "the mat and the dog"]


@pytest.mark.parametrize("whole", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_encode(whole: bool, tmp_path: Path) -> None:
    bert(BertModel).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)

    def made() -> SentenceTransformer:
        words = Transformer(str(tmp_path))
        pooling = Pooling(words.get_embedding_dimension())
        return SentenceTransformer(modules=[words, pooling], device="cpu").eval()

    model = made()
    if whole:
        model.compile(backend="pjrt")
    else:
        # It is called past `__call__`, which is what `compile` of a module changes.
        encoder = model[0].auto_model
        encoder.forward = torch.compile(encoder.forward, backend="pjrt")
    found = model.encode(SENTENCES, show_progress_bar=False)
    expected = made().encode(SENTENCES, show_progress_bar=False)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not on_host()
