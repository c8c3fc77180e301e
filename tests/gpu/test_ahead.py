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
