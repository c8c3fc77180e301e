"""Models of which a part runs in PyTorch: in parts, saved, and run without their code."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from pjrt_bridge.errors import NotExportable, OptionError, ProgramError
from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.exported.manifest import Manifest
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import export
from tests.torch_interop.export import divided
from tests.torch_interop.export.divided import Middle, placements, same
from tests.torch_interop.export.test_export import close, lambda_module
from tests.torch_interop.mixed import operators


def test_the_report_tells_where_and_why(tmp_path: Path) -> None:
    export(Middle(), (torch.randn(3, 4),), split=True).save(tmp_path)
    model = ExportedModel.load(tmp_path, trusted=True)
    report = model.report()
    (graph,) = report.graphs
    assert [segment.reads for segment in graph.segments] == [(), (0,), (1,), (2,)]
    assert graph.segments[0].operators["aten.addmm.default"] == 1
    (found,) = {reason for reason in graph.fallback_reasons if "nonzero" in reason.operator}
    assert found.kind == "data"
    assert found.source is not None
    assert found.source.startswith(f"{divided.__file__}:")
    assert found.source.endswith("# the line")
    assert "aten.nonzero.default: its result's shape" in str(report)
    assert not report.advice
    with pytest.raises(ProgramError, match=r"'Middle': its program is in 4 parts, some of"):
        _ = model.program
    assert Manifest.read(tmp_path).format == 3
    assert {path.name for path in tmp_path.glob("program_0_1*")} == {"program_0_1.pt2"}


def test_a_model_that_lowers_is_whole(tmp_path: Path) -> None:
    model = export(nn.ReLU(), (torch.ones(2),), split=True)
    assert "maximum" in model.program.text
    assert placements(model) == ["device"]
    model.save(tmp_path)
    assert Manifest.read(tmp_path).format == 1


def test_it_runs_without_being_saved_and_keeps_state(client: Client) -> None:
    net = Middle()
    model = export(copy.deepcopy(net), (torch.randn(3, 4),), split=True)
    with model.load_on(client) as loaded:
        for _ in range(3):
            x = torch.randn(3, 4)
            assert same(loaded(x), net(x))
            assert close(loaded.weights()["total"], net.total)
        loaded.reset()
        assert not loaded.weights()["total"].any()


def test_values_of_several_types_cross(client: Client) -> None:
    def function(x: torch.Tensor) -> Any:
        values = torch.unique(x.to(torch.bfloat16))
        small = values.sum()
        wide = values.double().prod()
        return (small * x, wide + 1, x[:, 1:].T.masked_select(x[:, 1:].T > 0).numel() > 2, None)

    x = torch.randn(3, 4)
    model = export(lambda_module(function), (x,), split=True)
    with model.load_on(client) as loaded:
        for found, expected in zip(loaded(x)[:2], function(x)[:2], strict=True):
            assert np.asarray(found).dtype == np.asarray(expected).dtype
            assert close(found, expected)
        assert loaded(x)[2:] == (True, None)


def test_new_values_that_are_no_values_of_their_own(client: Client) -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("last", "first", "second"):
                self.register_buffer(name, torch.zeros(4))
            self.register_buffer("wide", torch.zeros(4, dtype=torch.float64))

        def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            total = torch.unique(x).sum() * x
            self.last.copy_(x)
            self.first.copy_(total)
            self.second.copy_(total)
            self.wide.copy_(total)
            out.copy_(total)
            return total

    net = Keeping()
    x, theirs = torch.randn(4), torch.zeros(4)
    model = export(net, (x, theirs), split=True)
    ours = np.zeros(4, np.float32)
    with model.load_on(client) as loaded:
        assert close(loaded(x, ours), net(x, theirs))
        assert close(ours, theirs)
        x.zero_()
        for name, value in net.named_buffers():
            assert close(loaded.weights()[name], value), name


def test_results_of_the_host_are_not_the_arguments(client: Client) -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> Any:
            count = torch.unique(x).shape[0]
            return self.weight[:count], x[:count]

    net, x = Views(), torch.tensor([1.0, 1, 2, 2])
    with export(net, (x,), split=True).load_on(client) as loaded:
        weight, part = loaded(x)
        x.zero_()
        assert np.asarray(part).tolist() == [1, 1]
        assert close(weight, net.weight[:2])


def test_autocast_of_the_caller_does_not_matter(client: Client) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.unique(x)[None] @ torch.unique(x)[:, None]

    x = torch.randn(3, 4)
    program = torch.export.export(lambda_module(function), (x,))
    plain = export(program, split=True)
    with torch.autocast("cpu", torch.bfloat16):
        inside = export(program, split=True)
    for model in (plain, inside):
        with model.load_on(client) as loaded, torch.autocast("cpu", torch.bfloat16):
            found = np.asarray(loaded(x))
        assert found.dtype == np.float32
        assert close(found, function(x))


def test_a_part_that_only_checks(client: Client) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        count = x.sum().int().item()
        torch._check(count > 1)
        return x * 2

    x = torch.ones(3)
    model = export(lambda_module(function), (x,), split=True)
    with model.load_on(client) as loaded:
        assert close(loaded(x), x * 2)
        with pytest.raises(RuntimeError, match="Runtime assertion failed"):
            loaded(-x)


def test_what_is_drawn_is_drawn_on_the_device(client: Client) -> None:
    def function(x: torch.Tensor) -> Any:
        noise = torch.rand_like(x)
        return noise, torch.unique(noise.round())

    x = torch.zeros(100)
    model = export(lambda_module(function), (x,), split=True)
    with model.load_on(client, seed=1) as one, model.load_on(client, seed=1) as other:
        first, values = one(x)
        assert np.asarray(values).tolist() == [0, 1]
        assert np.array_equal(first, other(x)[0])
        assert not np.array_equal(first, one(x)[0])


def test_constants_of_the_model_are_in_both(client: Client, tmp_path: Path) -> None:
    class Constants(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small, self.large = torch.arange(3.0), torch.randn(400)

        def forward(self, x: torch.Tensor) -> Any:
            values = torch.unique(x)
            return torch.bucketize(values, self.small), x + self.small.sum() + self.large.sum()

    net, x = Constants(), torch.tensor([0.5, 1.5, 0.5])
    export(net, (x,), split=True).save(tmp_path)
    model = ExportedModel.load(tmp_path, trusted=True)
    assert {weight.kind for weight in model.weights.values()} == {"constant"}
    with model.load_on(client) as loaded:
        for found, expected in zip(loaded(x), net(x), strict=True):
            assert close(found, expected)


def test_programs_for_several_sizes(client: Client, tmp_path: Path) -> None:
    net = Middle()
    rows = Dim("rows", min=2, max=64)
    export(
        net,
        (torch.randn(3, 4),),
        dynamic_shapes={"x": {0: rows}},
        sizes=[{"rows": 3}, {"rows": 8}],
        split=True,
    ).save(tmp_path)
    with ExportedModel.load(tmp_path, trusted=True).load_on(client) as loaded:
        for size in (3, 8, 3):
            x = torch.randn(size, 4)
            assert same(loaded(x), net(x))


class Spread(nn.Module):
    """A loss with an operator that nobody lowers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return operators.squared(self.linear(x)).sum()


def test_a_training_step(client: Client) -> None:
    torch.manual_seed(0)
    net, x = Spread(), torch.randn(4, 4)
    model = export(net, (x,), training=True, split=True)
    assert "host" in placements(model)
    with model.load_on(client) as loaded:
        found = loaded(x)
    loss = net(x)
    loss.backward()  # type: ignore[no-untyped-call]
    assert close(found["loss"], loss)
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        assert close(found["gradients"][name], parameter.grad)


def test_a_whole_step_with_an_optimizer(client: Client) -> None:
    torch.manual_seed(0)
    net, x = Spread(), torch.randn(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    step = export(net, (x,), training=True, optimizer=optimizer, split=True)
    theirs = copy.deepcopy(net)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=0.9)
    with step.load_on(client) as loaded:
        for _ in range(3):
            optimizer.zero_grad()
            loss = theirs(x)
            loss.backward()
            optimizer.step()
            assert close(loaded(x)["loss"], loss)
        for name, parameter in theirs.named_parameters():
            assert close(loaded.weights()[name], parameter)


def test_what_cannot_be_divided() -> None:
    with pytest.raises(NotExportable, match=r"split=True\) leaves these to PyTorch"):
        export(Middle(), (torch.randn(3, 4),))
    with pytest.raises(OptionError, match="no parts"):
        export(nn.ReLU(), (torch.ones(2),), split=True, exporter="torch_xla")
