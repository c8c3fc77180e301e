"""Models of which a part runs in PyTorch: in parts, saved, and run without their code."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from pjrt_bridge.errors import NotExportable, OptionError, ProgramError, SavedModelError
from pjrt_bridge.exported import ExportedModel, SplitProgram
from pjrt_bridge.exported.manifest import Manifest
from pjrt_bridge.exported.model import _record
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import export
from tests.exported.test_model import rewrite
from tests.torch_interop.export.test_export import close, lambda_module
from tests.torch_interop.mixed import operators


class Middle(nn.Module):
    """On the device, where sizes depend on data, and on the device again; keeps a count."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(4, 4), nn.Linear(2, 3)
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        places = (self.before(x) > 0).nonzero()  # the line
        y = self.after(places.sum(0).float()).tanh()
        self.total.add_(y)
        return {"y": y, "values": torch.unique(y), "places": [places * 2, places.shape[0]]}


def placements(model: ExportedModel) -> list[str]:
    (graph,) = model.report().graphs
    return [segment.placement for segment in graph.segments]


def same(found: Any, expected: Any) -> bool:
    assert set(found) == set(expected)
    (places, count), (our_places, our_count) = expected["places"], found["places"]
    return (
        close(found["y"], expected["y"])
        and close(found["values"], expected["values"])
        and close(our_places, places)
        and our_count == count
    )


ELSEWHERE = """
import sys
import numpy as np
from pjrt_bridge.exported import ExportedModel
from tests.plugins import cpu_plugin

assert "torch" not in sys.modules
model = ExportedModel.load(sys.argv[1], trusted=True)
assert "torch" in sys.modules
with model.load_on(cpu_plugin().client({"cpu_device_count": 1})) as loaded:
    for x in np.load(sys.argv[2]).values():
        found = loaded(x)
    values, (places, count) = found["values"], found["places"]
    total = loaded.weights()["total"]
np.savez(sys.argv[3], y=found["y"], values=values, places=places, count=count, total=total)
"""


def test_a_process_without_its_code_runs_it(tmp_path: Path) -> None:
    net = Middle()
    # The last has no element above zero.
    nothing = -1e3 * net.before.weight.detach().pinverse() @ torch.ones(4, 3)
    inputs = [torch.randn(3, 4), torch.randn(3, 4), nothing.T]
    model = export(net, (inputs[0],), split=True)
    assert placements(model) == ["device", "host", "device", "host"]
    model.save(tmp_path / "model")
    np.savez(tmp_path / "inputs.npz", *[x.numpy() for x in inputs])
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, tmp_path / "model", tmp_path / "inputs.npz",
         tmp_path / "found.npz"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for x in inputs:
        expected = net(x)
    found = np.load(tmp_path / "found.npz")
    assert close(found["y"], expected["y"])
    assert close(found["values"], expected["values"])
    assert close(found["places"], expected["places"][0])
    assert found["count"] == expected["places"][1]
    assert close(found["total"], net.total)


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
    assert found.source.startswith(f"{__file__}:")
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


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    export(Middle(), (torch.randn(3, 4),), split=True).save(folder)
    return folder


class TestDamage:
    """A folder that was altered, also by somebody who knows about the hashes."""

    def load(self, saved: Path, folder: Path, damage: Any) -> ExportedModel:
        for path in saved.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        damage(folder)
        return ExportedModel.load(folder, trusted=True)

    def test_bytes(self, saved: Path, tmp_path: Path) -> None:
        def flip(folder: Path) -> None:
            path = folder / "program_0_1.pt2"
            content = path.read_bytes()
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

        with pytest.raises(SavedModelError, match=r"program_0_1\.pt2: sha256: found .* altered"):
            self.load(saved, tmp_path, flip)

    def test_a_file_that_torch_did_not_write(self, saved: Path, tmp_path: Path) -> None:
        def replace(folder: Path) -> None:
            path = folder / "program_0_1.pt2"
            path.write_bytes(b"nothing")
            record = vars(_record(b"nothing"))
            rewrite(lambda m: m["files"].update({path.name: record}))(folder)

        with pytest.raises(SavedModelError, match=r"program_0_1\.pt2: torch cannot read it: "):
            self.load(saved, tmp_path, replace)

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (
                lambda part: part.update(framework="mindspore"),
                r"runs in 'mindspore' on the host, and there is no pjrt_bridge\.mindspore_interop",
            ),
            (
                lambda part: part.update(framework="../x"),
                r"framework: found '\.\./x', needed a",
            ),
            (lambda part: part.update(inputs=[99]), r"field 'parts': .* reads \[99\] before they"),
            (lambda part: part.pop("outputs"), r"manifest.json: .*'outputs' is missing"),
            (lambda part: part.update(file="gone.pt2"), r"gone\.pt2: cannot be read: No such file"),
        ],
    )
    def test_fields(self, saved: Path, tmp_path: Path, change: Any, text: str) -> None:
        damage = rewrite(lambda m: change(m["model"]["programs"][0]["parts"][1]))
        with pytest.raises(SavedModelError, match=text):
            self.load(saved, tmp_path, damage)

    def test_a_device_part_that_takes_something_else(self, saved: Path, tmp_path: Path) -> None:
        damage = rewrite(lambda m: m["model"]["programs"][0]["parts"][0]["inputs"].pop())
        with pytest.raises(SavedModelError, match=r"part 'Middle_0': found 2 inputs and 1 out"):
            self.load(saved, tmp_path, damage)

    def test_without_torch(self, saved: Path) -> None:
        code = (
            "import sys; sys.modules['torch'] = None\n"
            "from pjrt_bridge.exported import ExportedModel\n"
            "ExportedModel.load(sys.argv[1], trusted=True)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, saved], capture_output=True, text=True, timeout=60
        )
        (last,) = done.stderr.strip().splitlines()[-1:]
        assert last.startswith("pjrt_bridge.errors.SavedModelError")
        assert "program_0_1.pt2: this part of the model runs in 'torch' on the host, and it" in last


def test_fallback_reasons_of_format_2_are_read(saved: Path, tmp_path: Path) -> None:
    def older(manifest: Any) -> None:
        manifest.update(format=2)
        for part in manifest["model"]["programs"][0]["parts"]:
            part["obstacles"] = part.pop("fallback_reasons")

    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    rewrite(older)(tmp_path)
    found = ExportedModel.load(tmp_path, trusted=True).report().graphs
    assert found == ExportedModel.load(saved, trusted=True).report().graphs
    assert found[0].fallback_reasons


def test_a_loaded_model_can_be_saved_again(saved: Path, tmp_path: Path, client: Client) -> None:
    model = ExportedModel.load(saved, trusted=True)
    model.save(tmp_path)
    again = ExportedModel.load(tmp_path, trusted=True)
    x = torch.randn(3, 4)
    with model.load_on(client) as one, again.load_on(client) as other:
        assert np.array_equal(one(x)["y"], other(x)["y"])


def test_the_manifest_says_what_crosses(tmp_path: Path) -> None:
    model = export(Middle(), (torch.randn(3, 4),), split=True)
    model.save(tmp_path)
    (fields,) = json.loads((tmp_path / "manifest.json").read_text())["model"]["programs"]
    (program,) = (one.program for one in model.specializations)
    assert isinstance(program, SplitProgram)
    assert [part["inputs"] for part in fields["parts"]] == [list(p.inputs) for p in program.parts]
    made = [value for part in fields["parts"] for value in part["outputs"]]
    first = len(program.parameters)
    assert made == list(range(first, first + len(made)))
