"""Models that PyTorch/XLA's own exporter lowers: `make test-torch-xla`, with PyTorch 2.9."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pjrt_bridge.errors import NotExportable, OptionError
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.exported.torch_xla_bundle import read_bundle
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import export
from tests import forked

INSTALLED = importlib.util.find_spec("torch_xla") is not None
live = pytest.mark.skipif(not INSTALLED, reason="PyTorch/XLA is not installed")
# PyTorch/XLA and the PyTorch that it needs warn of themselves.
pytestmark = pytest.mark.filterwarnings("default")


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.norm = nn.LayerNorm(16)
        self.linear = nn.Linear(16, 8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, ids: torch.Tensor, bias: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = nn.functional.gelu(self.linear(self.norm(self.embedding(ids)))) * self.scale
        return {"hidden": hidden + bias, "mean": hidden.mean(-1)}


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.head(self.body(image).mean((2, 3))), -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
        found, weights = self.attention(pair[0], pair[1], pair[1])
        return [found, weights]


MODELS = {
    "encoder": (Encoder, (torch.randint(0, 32, (2, 3)), torch.randn(8))),
    "convolutional": (Convolutional, (torch.randn(2, 3, 8, 8),)),
    "attention": (Attention, ((torch.randn(2, 4, 16), torch.randn(2, 6, 16)),)),
}


def built(name: str) -> tuple[nn.Module, tuple[object, ...]]:
    torch.manual_seed(0)
    model, arguments = MODELS[name]
    return model().eval(), arguments


@live
@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_what_eager_gives(name: str, client: Client, tmp_path: Path) -> None:
    model, arguments = built(name)
    exported = export(model, arguments, exporter="torch_xla")
    assert exported.exporter.startswith("torch_xla 2.")
    assert exported.name == type(model).__name__
    exported.save(tmp_path)
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(model(*arguments))
    for one in (exported, ExportedModel.load(tmp_path)):
        with one.load_on(client) as loaded:
            found = torch.utils._pytree.tree_leaves(loaded(*arguments))
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-4)


@live
def test_arguments_have_their_names(client: Client) -> None:
    model, (ids, bias) = built("encoder")
    exported = export(model, (ids, bias), exporter="torch_xla")
    assert [argument.name for argument in exported.interface.arguments] == ["ids", "bias"]
    with exported.load_on(client) as loaded, torch.no_grad():
        np.testing.assert_allclose(
            loaded(bias=bias, ids=ids)["mean"], model(ids, bias)["mean"], atol=1e-4
        )


@live
def test_a_bundle_of_today_is_read(client: Client, tmp_path: Path) -> None:
    from torch_xla.stablehlo import save_as_stablehlo

    model, arguments = built("encoder")
    save_as_stablehlo(torch.export.export(model, arguments), str(tmp_path))
    with read_bundle(tmp_path).load_on(client) as loaded, torch.no_grad():
        np.testing.assert_allclose(
            loaded(*arguments)["hidden"], model(*arguments)["hidden"], atol=1e-4
        )


@live
def test_what_it_cannot_lower_is_said() -> None:
    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.unique(x)

    with pytest.raises(NotExportable, match="exporter 'torch_xla': "):
        export(Counting(), (torch.tensor([1, 2, 2]),), exporter="torch_xla")


@pytest.mark.parametrize(
    "options",
    [{"training": True}, {"kwargs": {"bias": torch.ones(8)}}, {"exporter": "onnx"}],
    ids=["training", "kwargs", "onnx"],
)
def test_what_it_does_not_take(options: dict[str, object]) -> None:
    model, arguments = built("encoder")
    with pytest.raises(OptionError, match="exporter"):
        export(model, arguments, **{"exporter": "torch_xla"} | options)


def test_without_pytorch_xla() -> None:
    source = """
import sys
sys.modules["torch_xla"] = None
import torch
from pjrt_bridge.errors import NotExportable
from pjrt_bridge.torch_interop import export
try:
    export(torch.nn.Linear(2, 2), (torch.ones(1, 2),), exporter="torch_xla")
except NotExportable as error:
    print(error)
"""
    done = forked.parent(forked.TORCH).run(source, timeout=120)
    assert done.stdout.startswith("exporter 'torch_xla': PyTorch/XLA cannot be imported"), done
    assert "pip install torch==2.9.0" in done.stdout
