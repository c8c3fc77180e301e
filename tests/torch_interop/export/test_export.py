"""What is exported says how it is called, keeps names and lines, and does what the model does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from pjrt_bridge import registry
from pjrt_bridge.errors import (
    NotExportable,
    OptionError,
    PluginNotFound,
    ProgramError,
    SignatureMismatch,
)
from pjrt_bridge.exported import ConstantLeaf, ExportedModel, TensorLeaf
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import bindings
from pjrt_bridge.stablehlo.program.saved import artifact_version
from pjrt_bridge.torch_interop import export


class Net(nn.Module):
    """Arguments of several sorts, a nested result, a constant of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("offset", torch.randn(3))
        self.table = torch.arange(3.0)

    def forward(self, x, pair, *, mask=None, scale=1.0):  # type: ignore[no-untyped-def]
        y = self.linear(x) * self.table + self.offset  # the line
        y = y + pair["a"] * pair["b"][0]
        if mask is not None:
            y = y * mask
        return {"y": y * scale, "both": [x, (y.T, None)], "number": 3}


def arguments() -> tuple[torch.Tensor, dict[str, Any]]:
    return torch.randn(2, 4), {"a": torch.randn(2, 3), "b": [torch.randn(3)]}


def close(found: Any, expected: torch.Tensor) -> bool:
    array = np.asarray(found)
    assert array.shape == tuple(expected.shape)
    return bool(np.allclose(array, expected.detach().numpy(), rtol=1e-5, atol=1e-5))


def test_a_call_is_that_of_the_module(client: Client) -> None:
    net = Net()
    x, pair = arguments()
    mask = torch.ones(2, 3)
    model = export(net, (x, pair), {"mask": mask, "scale": 2.0})
    with model.load_on(client) as loaded:
        expected = net(x, pair, mask=mask, scale=2.0)
        calls = loaded(x, pair, mask=mask, scale=2.0), loaded(x.numpy(), pair=pair, mask=mask)
        for found in calls:
            assert set(found) == {"y", "both", "number"}
            assert close(found["y"], expected["y"])
            assert close(found["both"][0], x)
            assert close(found["both"][1][0], expected["both"][1][0])
            assert found["both"][1][1] is None
            assert found["number"] == 3
        with pytest.raises(SignatureMismatch, match=r"'scale': found 3.0, expected 2.0, which is"):
            loaded(x, pair, mask=mask, scale=3.0)
        with pytest.raises(SignatureMismatch, match=r"argument 'pair': found a dict of \['a'\]"):
            loaded(x, {"a": pair["a"]}, mask=mask)


def test_names_are_those_of_the_model() -> None:
    model = export(Net(), arguments(), {"scale": 2.0})
    assert [argument.name for argument in model.interface.arguments] == ["x", "pair", "scale"]
    inputs = model.interface.inputs
    assert [leaf.name for leaf in inputs] == ["x", "pair_a", "pair_b_0", "scale"]
    assert isinstance(inputs[0], TensorLeaf)
    assert inputs[0].shape == (2, 4)
    assert inputs[3] == ConstantLeaf("scale", 2.0)
    kinds = {name: weight.kind for name, weight in model.weights.items()}
    assert kinds == {"linear.weight": "parameter", "linear.bias": "parameter", "offset": "buffer"}
    assert model.name == "Net"
    assert model.exporter == f"torch {torch.__version__}"


def test_small_constants_are_in_the_program_and_large_ones_beside_it() -> None:
    class Constants(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small, self.large = torch.arange(3.0), torch.randn(400)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.small.sum() + self.large.sum()

    model = export(Constants(), (torch.ones(1),))
    assert {name: weight.kind for name, weight in model.weights.items()} == {"large": "constant"}
    assert "[0.000000e+00, 1.000000e+00, 2.000000e+00]" in model.program.text


def test_lines_of_the_user_are_in_the_program(tmp_path: Path) -> None:
    export(Net(), arguments()).save(tmp_path)
    source = Path(__file__).read_text().splitlines()
    line = next(at for at, text in enumerate(source, 1) if text.endswith("# the line"))
    assert f'{Path(__file__).name}":{line}:' in (tmp_path / "program_0.mlir").read_text()


def test_weights_are_not_copied_and_shared_ones_are_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(4, 4, bias=False)
            self.other = nn.Linear(4, 4, bias=False)
            self.other.weight = self.one.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.other(self.one(x))

    net = Tied()
    model = export(net, (torch.ones(4),))
    assert list(model.tensors) == ["one.weight"]
    address = model.tensors["one.weight"].__array_interface__["data"][0]
    assert address == net.one.weight.data_ptr()


def test_operators_that_torch_takes_apart_everywhere_else(client: Client) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")

    x = torch.randn(1, 2, 3, 3)
    with export(lambda_module(function), (x,)).load_on(client) as loaded:
        assert close(loaded(x), function(x))


def test_results_and_weights_in_another_order_of_memory(client: Client) -> None:
    net = nn.Linear(3, 5)
    net.weight = nn.Parameter(torch.randn(3, 5).T)
    x = torch.randn(3, 2).T
    with export(lambda_module(lambda x: net(x).T), (x,)).load_on(client) as loaded:
        assert close(loaded(x), net(x).T)


def lambda_module(function: Callable[..., Any]) -> nn.Module:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    return Module()


def test_what_the_model_changes_is_kept(client: Client, tmp_path: Path) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
            total.add_(x)
            return self.norm(x)

    net = Counting()
    x, total = torch.randn(8, 3), torch.zeros(8, 3)
    before = copy.deepcopy(net.state_dict())
    export(net, (x, total)).save(tmp_path)
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    with ExportedModel.load(tmp_path).load_on(client) as loaded:
        ours = np.zeros((8, 3), np.float32)
        for _ in range(3):
            assert close(loaded(x, ours), net(x, total))
            assert close(ours, total)
        found = loaded.weights()
        assert close(found["norm.running_var"], net.norm.running_var)
        assert found["norm.num_batches_tracked"] == 3
        ours.flags.writeable = False
        with pytest.raises(SignatureMismatch, match="'total' gets a new value in the call"):
            loaded(x, ours)


def test_arguments_of_half_precision_are_written_into(client: Client, tmp_path: Path) -> None:
    class Filling(nn.Module):
        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            x[at] = 3
            return x + 1

    for dtype in (torch.bfloat16, torch.float16):
        ours, theirs = torch.zeros(4, 2, dtype=dtype), torch.zeros(4, 2, dtype=dtype)
        at = torch.tensor([1, 3])
        folder = tmp_path / str(dtype)
        export(Filling(), (ours.clone(), at)).save(folder)
        with ExportedModel.load(folder).load_on(client) as loaded:
            loaded(ours, at)
        Filling()(theirs, at)
        assert torch.equal(ours, theirs)


def test_an_example_that_is_given_twice_is_two_arguments(client: Client) -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, *, z: torch.Tensor) -> torch.Tensor:
            return x - 2 * y + 3 * z

    example = torch.randn(3, requires_grad=True)
    model = export(Both(), (example, example), {"z": example})
    x, y, z = torch.randn(3, 3)
    with model.load_on(client) as loaded:
        assert close(loaded(x, y, z=z), x - 2 * y + 3 * z)


def test_what_the_model_draws_is_new_in_each_call(client: Client) -> None:
    model = export(nn.Dropout(0.5).train(), (torch.ones(1000),))
    with model.load_on(client, seed=1) as one, model.load_on(client, seed=1) as other:
        first, second = np.asarray(one(torch.ones(1000))), np.asarray(one(torch.ones(1000)))
        assert set(np.unique(first)) == {0.0, 2.0}
        assert not np.array_equal(first, second)
        assert np.array_equal(first, other(torch.ones(1000)))


def test_containers_of_other_classes_come_back_as_plain_ones(client: Client) -> None:
    class Point(NamedTuple):
        x: torch.Tensor
        y: torch.Tensor

    model = export(lambda_module(lambda x: Point(x + 1, x + 2)), (torch.zeros(2),))
    assert model.interface.outputs.origin.endswith("Point")
    with model.load_on(client) as loaded:
        found = loaded(torch.zeros(2))
    assert {key: np.asarray(value).tolist() for key, value in found.items()} == {
        "x": [1, 1],
        "y": [2, 2],
    }


class TestSizes:
    BATCH = Dim("batch", min=2, max=64)

    def module(self) -> nn.Module:
        class Rows(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 3)

            def forward(self, x: torch.Tensor, weight: torch.Tensor) -> Any:
                rows = self.linear(x) * weight.reshape(x.shape[0], -1)
                return rows.softmax(0), rows.reshape(-1)

        return Rows()

    def test_a_program_for_each_choice(self, client: Client, tmp_path: Path) -> None:
        net = self.module()
        model = export(
            net,
            (torch.randn(4, 4), torch.ones(4)),
            dynamic_shapes={"x": {0: self.BATCH}, "weight": {0: self.BATCH}},
            sizes=[{"batch": 4}, {"batch": 7}],
        )
        assert model.symbols == {"batch": (2, 64)}
        assert [one.sizes for one in model.specializations] == [{"batch": 4}, {"batch": 7}]
        shapes = [leaf.shape for leaf in model.interface.inputs if isinstance(leaf, TensorLeaf)]
        assert shapes == [("batch", 4), ("batch",)]
        assert len(model.tensors) == 2
        model.save(tmp_path)
        with ExportedModel.load(tmp_path).load_on(client) as loaded:
            for rows in (4, 7):
                x, weight = torch.randn(rows, 4), torch.randn(rows)
                for found, expected in zip(loaded(x, weight), net(x, weight), strict=True):
                    assert close(found, expected)
            with pytest.raises(SignatureMismatch, match=r"x: \[5, 4\].* for batch=4; batch=7\. Ex"):
                loaded(torch.randn(5, 4), torch.ones(5))
            with pytest.raises(SignatureMismatch, match="no program for the sizes of"):
                loaded(torch.randn(4, 4), torch.ones(7))

    def test_an_exported_program_without_names(self) -> None:
        program = torch.export.export(
            self.module(),
            (torch.randn(4, 4), torch.ones(4)),
            dynamic_shapes=({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}),
        )
        sizes = {"x.0": 9, "weight.0": 9}
        (one,) = export(program, sizes=[sizes]).specializations
        assert one.sizes == sizes
        assert [parameter.type.shape for parameter in one.program.signature.parameters][-2:] == [
            (9, 4),
            (9,),
        ]

    @pytest.mark.parametrize(
        ("sizes", "text"),
        [
            ([{"batch": 65}], "found batch=65, expected 2 to 64"),
            ([{"rows": 3}], r"found \{'rows': 3\}, expected a size for each of \['batch'\]"),
            ([], "found none, expected one choice or more"),
        ],
    )
    def test_sizes_that_the_model_does_not_have(self, sizes: Any, text: str) -> None:
        with pytest.raises(OptionError, match=text):
            export(
                self.module(),
                (torch.randn(4, 4), torch.ones(4)),
                dynamic_shapes={"x": {0: self.BATCH}, "weight": {0: self.BATCH}},
                sizes=sizes,
            )
        with pytest.raises(OptionError, match="dynamic_shapes names none"):
            export(nn.ReLU(), (torch.ones(2),), sizes=[{"batch": 3}])


class TestTargets:
    @pytest.mark.parametrize("target", ["0.9.0", "1.0.0", "1.8.0", None])
    def test_artifacts_of_all_versions_run(
        self, client: Client, tmp_path: Path, target: str | None
    ) -> None:
        net = nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.LayerNorm(3))
        x = torch.randn(2, 4)
        model = export(net, (x,), target=target)
        assert target in (None, artifact_version(model.artifact()))
        model.save(tmp_path)
        with ExportedModel.load(tmp_path).load_on(client) as loaded:
            assert close(loaded(x), net(x))

    def test_a_client_stands_for_its_plugin(self, client: Client) -> None:
        model = export(nn.ReLU(), (torch.ones(2),), target=client)
        assert artifact_version(model.artifact()) == client.plugin.stablehlo_version

    def test_the_default_plugin_reads_what_is_written_by_default(self, client: Client) -> None:
        model = export(nn.ReLU(), (torch.ones(2),))
        assert artifact_version(model.artifact()) == client.plugin.stablehlo_version

    def test_without_a_plugin_it_is_for_those_of_the_last_weeks(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def none() -> None:
            raise PluginNotFound("no plugin is available")

        monkeypatch.setattr(registry, "load", none)
        model = export(nn.ReLU(), (torch.ones(2),))
        assert artifact_version(model.artifact()) == bindings.compatibility_versions()[-1]

    def test_no_version(self) -> None:
        with pytest.raises(ProgramError, match="StableHLO version 'newest'"):
            export(nn.ReLU(), (torch.ones(2),), target="newest")


class TestRefusals:
    def test_all_that_does_not_lower_is_told_with_its_lines(self) -> None:
        def function(x: torch.Tensor) -> Any:
            return x.nonzero(), torch.unique(x)

        with pytest.raises(NotExportable, match=r"2 things in the model cannot") as caught:
            export(lambda_module(function), (torch.ones(3),))
        first, second = caught.value.reasons
        assert first.startswith("aten.nonzero.default: its result's shape")
        assert second.startswith("aten._unique2.default: ")
        assert all(f"{__file__}:" in reason for reason in caught.value.reasons)
        assert all(reason in str(caught.value) for reason in caught.value.reasons)

    def test_what_is_no_model(self) -> None:
        with pytest.raises(OptionError, match="found a function, expected a module"):
            export(lambda x: x, (torch.ones(1),))  # type: ignore[arg-type]

    def test_options_that_contradict_each_other(self) -> None:
        x = (torch.ones(2),)
        with pytest.raises(OptionError, match="belong to training=True"):
            export(nn.ReLU(), x, loss=lambda y: y)
        with pytest.raises(OptionError, match="has the sizes of its example"):
            export(nn.ReLU(), x, training=True, dynamic_shapes={"input": {0: Dim("n")}})
        with pytest.raises(OptionError, match="has its dynamic shapes already"):
            export(torch.export.export(nn.ReLU(), x), dynamic_shapes={"input": {0: Dim("n")}})

    def test_weights_that_no_plugin_can_have(self) -> None:
        class Sparse(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.eye(3).to_sparse(), requires_grad=False)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x + self.weight.to_dense()

        with pytest.raises(NotExportable, match="sparse"):
            export(Sparse(), (torch.ones(3, 3),))

    def test_an_operator_that_torch_export_cannot_trace(self) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.lstsq(x, x).solution

        with pytest.raises(NotExportable, match=r"linalg_lstsq.*torch\.compile runs the model"):
            export(lambda_module(function), (torch.eye(3),))

    def test_an_argument_that_changes_its_size(self) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            x.resize_((0,))
            return x.clamp_(0, 2).new_ones(2)

        with pytest.raises(NotExportable, match="changes the size of an input"):
            export(lambda_module(function), (torch.ones(2, 3),))
