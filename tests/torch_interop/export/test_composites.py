"""Composites in exported models: which there are, and that any plugin runs them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

from pjrt_bridge import registry
from pjrt_bridge.errors import OptionError
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.composites import Composite
from pjrt_bridge.torch_interop import composite, export
from pjrt_bridge.torch_interop.exporting.operator_composites import KEPT
from tests.stablehlo.test_composites import found_in


@composite("my.inner", attributes={"parts": [1, 2]})
def inner(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + torch.arange(4)


@composite("my.rope", version=2)
def rope(x: torch.Tensor, y: torch.Tensor, *, theta: float = 1.5) -> tuple[torch.Tensor, ...]:
    return inner(x) * y * theta, x


class Operators(nn.Module):
    """Operators that compilers look for, and functions that are marked."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.Sequential(
            nn.LayerNorm(4), nn.RMSNorm(4), nn.GroupNorm(2, 4), nn.BatchNorm1d(4)
        )
        self.bag = nn.EmbeddingBag(5, 4, mode="sum")
        self.register_buffer("bytes", torch.randint(-4, 4, (3, 4), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(3))

    def forward(self, x, heads, places):  # type: ignore[no-untyped-def]
        x = self.norms(rope(x, x)[0])
        x = functional.mish(functional.hardswish(functional.silu(x)))
        x = functional.gelu(functional.gelu(x, approximate="tanh"))
        image = heads[:, :, :, :4]
        return {
            "soft": x.softmax(-1),
            "log": x.log_softmax(-1),
            "causal": functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
            "masked": functional.scaled_dot_product_attention(
                heads, heads, heads, torch.ones(3, 3, dtype=torch.bool).tril(), scale=0.5
            ),
            "bag": self.bag(places),
            "most": x.topk(2),
            "pooled": functional.avg_pool2d(image, 2, 1),
            "small": functional.adaptive_avg_pool2d(image, (1, 2)),
            "nearest": functional.interpolate(image, scale_factor=2.0, mode="nearest"),
            "smooth": functional.interpolate(image, size=(5, 6), mode="bilinear"),
            "each": functional.instance_norm(image),
            "bytes": torch._weight_int8pack_mm(x, self.bytes, self.scales),
        }


def arguments() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(6, 4), torch.randn(2, 2, 3, 8), torch.tensor([[0, 1], [2, 2], [4, 3]])


def composites_of(model: ExportedModel) -> list[Composite]:
    return [item for one in model.specializations for item in found_in(one.program)]  # type: ignore[arg-type]


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in leaves(item)]
    return [torch.from_numpy(np.array(value)) if not isinstance(value, torch.Tensor) else value]


@pytest.fixture(scope="module")
def kept() -> tuple[nn.Module, ExportedModel]:
    model = Operators().eval()
    return model, export(model, arguments(), composites="keep")


@pytest.mark.parametrize("plugin", ["cpu", "reference"])
def test_any_plugin_runs_the_model(
    kept: tuple[nn.Module, ExportedModel], plugin: str, tmp_path: Path
) -> None:
    model, exported = kept
    exported.save(tmp_path / "model")
    loaded = ExportedModel.load(tmp_path / "model", trusted=True)
    assert composites_of(loaded) == composites_of(exported)
    with loaded.load_on(registry.client(plugin)) as running:
        torch.testing.assert_close(leaves(running(*arguments())), leaves(model(*arguments())))


def test_operators_and_marked_functions_stay(kept: tuple[nn.Module, ExportedModel]) -> None:
    found = {one.name: one for one in composites_of(kept[1])}
    operators = {name for name in found if name.startswith("aten.")}
    assert operators == set(KEPT)
    assert found["my.rope"] == Composite("my.rope", {"theta": 1.5}, 2)
    assert found["my.inner"] == Composite("my.inner", {"parts": (1, 2)})
    attention = found["aten.scaled_dot_product_attention.default"]
    assert attention.attributes["operand_names"] == ("query", "key", "value", "attn_mask")
    assert attention.attributes["scale"] == 0.5
    norm = {"operand_names": ("input", "weight"), "normalized_shape": (4,)}
    assert found["aten.rms_norm.default"] == Composite("aten.rms_norm.default", norm, 1)


def test_by_default_there_are_none(kept: tuple[nn.Module, ExportedModel]) -> None:
    assert not composites_of(export(kept[0], arguments()))


def test_marks_alone_change_no_program() -> None:
    class Marked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.gelu(marked(x))

    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.gelu(torch.sin(x) * 2 + torch.arange(4))

    marked = composite("my.op")(lambda x: torch.sin(x) * 2 + torch.arange(4))
    texts = [
        export(model, (torch.ones(3, 4),), name="m").specializations[0].program.text  # type: ignore[union-attr]
        for model in (Marked(), Plain())
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("how", "count"), [("inline", 0), ("keep", 2)])
def test_in_branches(client: Client, how: Any, count: int) -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torch.cond(
                x.sum() > 0, lambda x: rope(x, x)[0] + 1, lambda x: functional.gelu(x), (x,)
            )
            return found

    exported = export(Branches(), (torch.ones(3, 4),), composites=how)
    # Operators of PyTorch are looked for outside of branches.
    assert len(composites_of(exported)) == count
    with exported.load_on(client) as running:
        for x in (torch.ones(3, 4), -torch.ones(3, 4)):
            torch.testing.assert_close(torch.from_numpy(np.array(running(x))), Branches()(x))


class Small(nn.Module):
    """A linear layer between a marked function and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.linear(rope(x, x)[0])).square().mean()


def test_several_sizes(client: Client) -> None:
    model = Small()
    exported = export(
        model,
        (torch.ones(3, 4),),
        dynamic_shapes={"x": {0: Dim("rows")}},
        sizes=[{"rows": 2}, {"rows": 5}],
        composites="keep",
    )
    names = [item.name for item in composites_of(exported)]
    assert sorted(names) == sorted(["my.rope", "my.inner", "aten.gelu.default"] * 2)
    with exported.load_on(client) as running:
        for rows in (2, 5):
            x = torch.randn(rows, 4)
            found = torch.from_numpy(np.array(running(x)))
            torch.testing.assert_close(found, model(x).detach())


def test_a_training_step_computes_the_same(client: Client) -> None:
    model, x = Small(), torch.randn(3, 4)

    def step(**how: Any) -> tuple[ExportedModel, list[Any]]:
        exported = export(model, (x,), training=True, **how)
        with exported.load_on(client) as running:
            return exported, leaves(running(x))

    with warnings.catch_warnings(action="ignore"):
        exported, found = step(composites="keep")
    torch.testing.assert_close(found, step()[1])
    assert [item.name for item in composites_of(exported)].count("aten.gelu.default") == 1


def test_a_program_of_torch_export_is_not_changed() -> None:
    program = torch.export.export(Small(), (torch.ones(3, 4),), strict=False)
    before = str(program.graph)
    assert composites_of(export(program, composites="keep"))
    assert str(program.graph) == before
    assert not composites_of(export(program))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"composites": "some"}, "expected 'inline' or 'keep'"),
        ({"composites": "keep", "split": True}, "exclude each other"),
        ({"composites": "keep", "target": "0.17.0"}, "expected 0.19.0 or newer"),
        ({"composites": "keep", "exporter": "torch_xla"}, "no composites"),
    ],
)
def test_options_that_contradict_each_other(how: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        export(Small(), (torch.ones(3, 4),), **how)
