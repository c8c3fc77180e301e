"""Models of the zoo over meshes: a step of training is the same as in PyTorch on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel

from pjrt_bridge.torch_interop.sharding import Mesh, fully_shard, parallelize
from tests.models.running import MODES, calls, compare

NAMES = [
    "bert",
    "bloom",
    "falcon",
    "gemma2",
    "gpt-neox",
    "gpt2",
    "llama",
    "mistral",
    "opt",
    "phi3",
    "qwen2",
    "t5",
]


def _columns(model: nn.Module, mesh: Mesh) -> None:
    """All layers by columns, as far as they divide."""
    plan = {
        name: ColwiseParallel()
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features % 2 == 0
    }
    parallelize(model, mesh, plan)


def _sequence(model: nn.Module, mesh: Mesh) -> None:
    """Normalizations over parts of each sequence, beside layers by columns."""
    plan = {
        name: SequenceParallel()
        for name, layer in model.named_modules()
        if "norm" in type(layer).__name__.lower() and name.count(".") > 1
    }
    assert plan
    parallelize(model, mesh, plan)
    _columns(model, mesh)


def _states(model: nn.Module, mesh: Mesh) -> None:
    fully_shard(model, mesh)


WAYS: dict[str, tuple[dict[str, int], Callable[[nn.Module, Mesh], object]]] = {
    "dp": ({"dp": 2}, parallelize),
    "tp": ({"tp": 2}, _columns),
    "dp x tp": ({"dp": 2, "tp": 2}, _columns),
    "fsdp": ({"fsdp": 2}, _states),
    "sequence": ({"dp": 2, "tp": 2}, _sequence),
}


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_training(name: str, way: str) -> None:
    sizes, divide = WAYS[way]
    mode = MODES["training"]
    expected = list(calls(name, mode, lambda function: function))
    mesh = Mesh(**sizes)

    def over_mesh(model: Callable[..., object]) -> Callable[..., object]:
        assert isinstance(model, nn.Module)
        divide(model, mesh)
        return torch.compile(model, backend="pjrt", options={"mesh": mesh})

    found = list(calls(name, replace(mode, device="pjrt"), over_mesh))
    for ours, theirs in zip(found, expected, strict=True):
        assert compare(ours, theirs, mode.tolerance) == []
