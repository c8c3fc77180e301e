"""Host memory that changes between calls is read anew, whatever kernels the plugin chooses."""

import numpy as np
import pytest
import torch

import pjrt_bridge

MATMUL = """
func.func @main(%a: tensor<256x768xf32>, %b: tensor<768x2304xf32>) -> tensor<256x2304xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<256x768xf32>, tensor<768x2304xf32>) -> tensor<256x2304xf32>
  return %0 : tensor<256x2304xf32>
}
"""


def difference(result: pjrt_bridge.Buffer, a: torch.Tensor, b: torch.Tensor) -> float:
    return float((torch.from_dlpack(result) - a @ b).abs().max())


@pytest.mark.parametrize("changed", ["left", "right"])
def test_a_shared_factor_that_is_updated_in_place(changed: str) -> None:
    client = pjrt_bridge.client()
    executable = client.compile(MATMUL)
    a, b = torch.randn(256, 768), torch.randn(768, 2304)
    buffers = [client.put(a, copy=False), client.put(b, copy=False)]
    assert difference(executable.execute(buffers)[0], a, b) < 1e-3
    for _ in range(2):
        (b if changed == "right" else a).mul_(-2.0)
        assert difference(executable.execute(buffers)[0], a, b) < 1e-2


def test_another_array_at_the_same_address() -> None:
    client = pjrt_bridge.client()
    executable = client.compile(MATMUL)
    a, memory = torch.randn(256, 768), torch.empty(768, 2304)
    for _ in range(3):
        memory.normal_()
        buffers = [client.put(a), client.put(memory, copy=False)]
        assert difference(executable.execute(buffers)[0], a, memory) < 1e-3


@pytest.mark.parametrize("operation", ["maximum", "minimum"])
def test_a_nan_wins_on_either_side(operation: str) -> None:
    program = f"""
    func.func @main(%x: tensor<2xf32>, %y: tensor<2xf32>) -> tensor<2xf32> {{
      %0 = stablehlo.{operation} %x, %y : tensor<2xf32>
      return %0 : tensor<2xf32>
    }}
    """
    x, y = np.array([np.nan, 1], np.float32), np.array([1, np.nan], np.float32)
    (result,) = pjrt_bridge.client().compile(program)(x, y)
    assert np.isnan(np.asarray(result)).all()


def test_the_callers_flags_come_after_the_safe_ones() -> None:
    client = pjrt_bridge.client()
    assert client.safe_flags["xla_cpu_use_xnnpack"] is False
    options = pjrt_bridge.CompileOptions(env={"xla_cpu_use_xnnpack": True})
    a, b = np.ones((256, 768), np.float32), np.ones((768, 2304), np.float32)
    (result,) = client.compile(MATMUL, options=options)(a, b)
    assert float(np.asarray(result)[0, 0]) == 768.0
