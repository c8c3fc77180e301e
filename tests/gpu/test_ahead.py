"""What was compiled for a GPU without using it runs on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pjrt_bridge import compile_for, topology
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.runtime import Client
from pjrt_bridge_cuda import GPUS
from tests import programs


def test_from_the_description_of_the_gpu_itself(gpu: Client) -> None:
    described = gpu.topology.attributes["target_config"]
    assert isinstance(described, str)
    ones = np.ones(64, np.float32)
    with compile_for(programs.ADD, "cuda", target_config=described) as made:
        data = made.serialize()
    with gpu.deserialize(data) as executable:
        (total,) = executable(ones, ones)
        assert np.array_equal(total.to_numpy(), ones + ones)


def own_names(gpu: Client) -> list[str]:
    """Names in the table of GPUs of those that have the same processor as this one."""
    capability = gpu.devices[0].attributes["compute_capability"]
    return [
        name
        for name, known in GPUS.items()
        if f"{known.capability.major}.{known.capability.minor}" == capability
    ]


def test_by_the_name_of_a_gpu_of_this_kind(gpu: Client) -> None:
    square = np.eye(512, dtype=np.float32) * 3
    names = own_names(gpu)
    assert names
    for name in names:
        with compile_for(programs.MATMUL, topology=name) as made:
            data = made.serialize()
        with gpu.deserialize(data) as executable:
            assert np.array_equal(executable(square)[0].to_numpy(), square * 3), name


CONVOLUTION = """
func.func @main(%x: tensor<4x16x16x8xf32>, %w: tensor<3x3x8x16xf32>, %b: tensor<16xf32>)
    -> tensor<4x16x16x16xf32> {
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<4x16x16x8xf32>, tensor<3x3x8x16xf32>) -> tensor<4x16x16x16xf32>
  %1 = stablehlo.broadcast_in_dim %b, dims = [3] : (tensor<16xf32>) -> tensor<4x16x16x16xf32>
  %2 = stablehlo.add %0, %1 : tensor<4x16x16x16xf32>
  %3 = stablehlo.constant dense<0.0> : tensor<4x16x16x16xf32>
  %4 = stablehlo.maximum %2, %3 : tensor<4x16x16x16xf32>
  return %4 : tensor<4x16x16x16xf32>
}
"""
PLAIN = CONVOLUTION.replace("return %4", "return %0")


@pytest.mark.parametrize("source", [PLAIN, CONVOLUTION], ids=["plain", "fused"])
def test_a_convolution(gpu: Client, source: str) -> None:
    rng = np.random.default_rng(0)
    shapes = [(4, 16, 16, 8), (3, 3, 8, 16), (16,)]
    arrays = [rng.integers(-2, 3, shape).astype(np.float32) for shape in shapes]
    with gpu.compile(source) as executable:
        expected = executable(*arrays)[0].to_numpy()
    with compile_for(source, topology=own_names(gpu)[0]) as made:
        data = made.serialize()
    with gpu.deserialize(data) as executable:
        assert np.array_equal(executable(*arrays)[0].to_numpy(), expected)


def test_a_model_that_was_compiled_elsewhere(gpu: Client, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from pjrt_bridge.torch_interop import export

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 16 * 16, 10),
        torch.nn.Softmax(-1),
    ).eval()
    x = torch.randn(4, 3, 16, 16)
    name = own_names(gpu)[0]
    with topology(name) as described:
        export(model, (x,)).compile_for(described).save(tmp_path)
    with ExportedModel.load(tmp_path, trusted=True).load_on(gpu) as loaded:
        found = np.asarray(loaded(x.numpy()))
    with torch.no_grad():
        np.testing.assert_allclose(found, model(x).numpy(), atol=2e-3)
