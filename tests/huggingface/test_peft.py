"""Low-rank adapters of PEFT: trained, and merged into the weights for inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from tests.comparing import Tolerance, difference
from tests.huggingface.helpers import furthest, llama, on_host

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    # It asks transformers by an old name.
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
]

TOKENS = torch.randint(0, 97, (2, 8), generator=torch.Generator().manual_seed(2))


def adapted() -> Any:
    config = LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, init_lora_weights=False
    )
    return get_peft_model(llama(), config)


def train(wrap: Callable[[Any], Any]) -> tuple[Any, list[float]]:
    model = adapted().train()
    function = wrap(model)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    losses = []
    for _ in range(3):
        loss = function(input_ids=TOKENS, labels=TOKENS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


@pytest.mark.slow
def test_training_and_merging() -> None:
    expected, losses = train(lambda model: model)
    model, found = train(lambda model: torch.compile(model, backend="pjrt"))
    assert found == pytest.approx(losses, rel=1e-5)
    assert furthest(model, expected) < 1e-4
    assert not on_host()
    with torch.no_grad():
        logits = expected.eval()(input_ids=TOKENS).logits
        merged = torch.compile(expected.merge_and_unload(), backend="pjrt")
        tolerance = Tolerance(1e-5, 1e-5)
        assert not difference(merged(input_ids=TOKENS).logits, logits, tolerance)
    assert not on_host()
