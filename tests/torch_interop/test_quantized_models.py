"""Models that torchao has quantized run on the device."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch_interop.helpers import assert_compiled, assert_same, compiled

with warnings.catch_warnings():
    # Torch's own and torchao's, while it is imported.
    warnings.simplefilter("ignore")
    quantization = pytest.importorskip("torchao.quantization")

pytestmark = pytest.mark.usefixtures("fresh")

RECIPES = {
    "int8 weights": lambda: quantization.Int8WeightOnlyConfig(),
    "int8 weights and activations": lambda: quantization.Int8DynamicActivationInt8WeightConfig(),
    "float8 weights": lambda: quantization.Float8WeightOnlyConfig(),
    "small integers": lambda: quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4),
    "int8 activations, small weights": lambda: quantization.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4
    ),
}


def quantized(model: nn.Module, recipe: str) -> nn.Module:
    made = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantization.quantize_(made, RECIPES[recipe]())
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_linear_layers(recipe: str, dtype: torch.dtype) -> None:
    plain = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 64)).to(dtype)
    model = quantized(plain, recipe)
    x = torch.randn(16, 128).to(dtype)
    with torch.no_grad():
        expected = model(x)
        found = compiled(model)(x)
    # An activation that is rounded the other way is a step of int8 away.
    assert_same(found, expected, rtol=2e-2, atol=2e-2)
    assert_compiled("inference")


@pytest.mark.parametrize("recipe", ["int8 weights", "int8 weights and activations"])
def test_a_language_model(recipe: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = quantized(transformers.LlamaForCausalLM(config).eval(), recipe)
    tokens = torch.randint(0, 128, (1, 12))

    def run(function: Any) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = function(tokens, use_cache=False).logits
        return logits

    assert_same(run(compiled(model)), run(model), rtol=2e-2, atol=2e-2)
    assert_compiled("inference")


def test_packed_int4_weights() -> None:
    """What `Int4WeightOnly` recipes for the CPU make of a layer."""
    weight = torch.randint(0, 16, (64, 128), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight, 1)
    scales = torch.rand(4, 64, 2).bfloat16() * 0.1

    def function(x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, 32, scales)
        return product.relu()

    x = torch.randn(8, 128).bfloat16()
    assert_same(compiled(function)(x), function(x), rtol=1e-2, atol=1e-2)
    assert_compiled("inference")
