import pytest
import torch

from tests.torch_interop.lowering.harness import check


@pytest.mark.parametrize("rows", [16, 32, 48, 64, 80, 96, 112, 128, 272])
def test_four_bits_are_packed_as_aten_packs_them(rows):
    weight = torch.randint(0, 16, (rows, 64), dtype=torch.int32)
    check("aten._convert_weight_to_int4pack_for_cpu.default", weight, 1, exact=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [16, 32, 48, 112, 272])
def test_packed_weights_are_multiplied(rows, dtype):
    weight = torch.randint(0, 16, (rows, 64), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight, 1)
    scales = torch.rand(2, rows, 2).to(dtype) * 0.1
    x = torch.randn(5, 64).to(dtype)
    check("aten._weight_int4pack_mm_for_cpu.default", x, packed, 32, scales)
