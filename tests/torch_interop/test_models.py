"""Whole models: outputs, gradients and training steps agree with eager PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch_interop.helpers import (
    TRAINING,
    assert_compiled,
    assert_same,
    assert_same_gradients,
    leaves,
    twins,
)

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("fresh")

Case = tuple[nn.Module, dict[str, Any]]

IDS = torch.tensor([[5, 3, 9, 1, 7, 2], [4, 8, 6, 2, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def mlp() -> Case:
    return Perceptron(), {"x": torch.randn(5, 8), "labels": torch.tensor([0, 1, 2, 3, 0])}


def resnet() -> Case:
    config = transformers.ResNetConfig(
        num_channels=3,
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        num_labels=4,
        problem_type="single_label_classification",
    )
    model = transformers.ResNetForImageClassification(config)
    return model, {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 3])}


def gpt2(attention: str) -> Case:
    config = transformers.GPT2Config(
        vocab_size=40,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation=attention,
    )
    model = transformers.GPT2LMHeadModel(config)
    # Otherwise it logs in its forward function, which breaks the graph.
    model.loss_type = "ForCausalLM"
    return model, {"input_ids": IDS, "attention_mask": MASK, "labels": IDS}


def bert(attention: str) -> Case:
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
        problem_type="single_label_classification",
        attn_implementation=attention,
    )
    model = transformers.BertForSequenceClassification(config)
    labels = torch.tensor([0, 2])
    return model, {"input_ids": IDS, "attention_mask": MASK, "labels": labels}


MODELS = [
    pytest.param(mlp, id="mlp"),
    pytest.param(resnet, id="resnet"),
    pytest.param(lambda: gpt2("sdpa"), id="gpt2-sdpa"),
    # Each way of attention is run always, by one of the two.
    pytest.param(lambda: gpt2("eager"), id="gpt2-eager", marks=pytest.mark.slow),
    pytest.param(lambda: bert("sdpa"), id="bert-sdpa", marks=pytest.mark.slow),
    pytest.param(lambda: bert("eager"), id="bert-eager"),
]


@pytest.mark.parametrize("case", MODELS)
def test_inference_agrees_with_eager(case: Callable[[], Case]) -> None:
    model, inputs = case()
    eager, device = twins(model.eval())
    with torch.no_grad():
        expected, found = eager(**inputs), device(**inputs)
    assert_same(found, expected)
    assert len(leaves(found)) >= 2
    assert_compiled("inference")


@pytest.mark.parametrize("case", MODELS)
def test_three_training_steps_agree_with_eager(case: Callable[[], Case]) -> None:
    model, inputs = case()
    eager, device = twins(model.train())
    rivals = [(m, torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)) for m in (eager, device)]
    for _ in range(3):
        losses = []
        for rival, optimizer in rivals:
            optimizer.zero_grad()
            loss = rival(**inputs)["loss"]
            loss.backward()
            losses.append(loss.detach())
        assert_same(losses[1], losses[0])
        assert_same_gradients(device, eager)
        for _, optimizer in rivals:
            optimizer.step()
    # Weights with a gradient of zero are rounding alone, so the bound is no part of their size.
    states = (list(model.state_dict().values()) for model in (device, eager))
    torch.testing.assert_close(*states, rtol=1e-3, atol=1e-4)
    assert_compiled(*TRAINING)


def test_a_loss_outside_of_the_graph_trains_the_same() -> None:
    model, inputs = gpt2("sdpa")
    inputs.pop("labels")
    eager, device = twins(model)
    for rival in (eager, device):
        rival(**inputs)["logits"].logsumexp(-1).mean().backward()
    assert_same_gradients(device, eager)
    assert_compiled(*TRAINING)
