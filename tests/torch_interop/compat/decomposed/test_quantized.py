"""Operators that torch's quantizers put into graphs run on the device, with eager's numbers."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.torch_interop.helpers import assert_compiled, assert_same, compiled

with warnings.catch_warnings():
    # Torch's own, of what it deprecates.
    warnings.simplefilter("ignore")
    from torch.ao.quantization.fx import _decomposed  # noqa: F401

pytestmark = pytest.mark.usefixtures("fresh")

Q = getattr(torch.ops, "quantized_decomposed")  # noqa: B009
X = torch.randn(6, 8) * 3
BYTES = torch.randint(-128, 128, (6, 8), dtype=torch.int8)
SCALE, ZERO = torch.tensor([0.03]), torch.tensor([-5])
SCALES, ZEROS = torch.rand(8) + 0.01, torch.randint(-9, 9, (8,))
ROWS, ROW_ZEROS = torch.rand(6, 1).double() + 0.01, torch.randint(-9, 9, (6, 1))
INT8 = (-128, 127, torch.int8)

CASES: dict[str, Callable[..., Any]] = {
    "numbers": lambda x, i: (
        Q.quantize_per_tensor(x, 0.03, -5, *INT8),
        Q.quantize_per_tensor(x.half(), 0.03, 7, 0, 255, torch.uint8),
        Q.dequantize_per_tensor(i, 0.03, -5, *INT8),
    ),
    "tensors": lambda x, i: (
        Q.quantize_per_tensor.tensor(x, SCALE, ZERO, *INT8),
        Q.quantize_per_tensor.tensor2(
            x, SCALE, ZERO, torch.tensor(-100), torch.tensor(90), torch.int8
        ),
        Q.dequantize_per_tensor.tensor(i, SCALE, ZERO, *INT8),
        Q.dequantize_per_tensor.tensor(i, SCALE, ZERO, *INT8, out_dtype=torch.bfloat16),
    ),
    "channels": lambda x, i: (
        Q.quantize_per_channel(x, SCALES, ZEROS, 1, *INT8),
        Q.dequantize_per_channel(i, SCALES, ZEROS, 1, *INT8),
        Q.dequantize_per_channel(i, SCALES, None, 1, *INT8),
        Q.dequantize_per_channel_group(i, SCALES[:6, None], None, *INT8, 8, torch.float32),
    ),
    "tokens": lambda x, i: (
        Q.quantize_per_token(x, ROWS, ROW_ZEROS, *INT8),
        Q.dequantize_per_token(i, ROWS, ROW_ZEROS, *INT8, torch.float32),
        Q.choose_qparams_per_token(x, torch.int8),
        Q.choose_qparams_per_token_asymmetric(x, torch.int8),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operators_of_exported_quantization(name: str) -> None:
    function = CASES[name]
    assert_same(compiled(function)(X, BYTES), function(X, BYTES), rtol=1e-6, atol=1e-6)
    assert_compiled("inference")
