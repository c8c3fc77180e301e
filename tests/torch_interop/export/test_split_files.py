"""Files of models of which a part runs in PyTorch: other processes, damage, older formats."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pjrt_bridge.errors import SavedModelError
from pjrt_bridge.exported import ExportedModel, SplitProgram
from pjrt_bridge.exported.model import _record
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import export
from tests.exported.test_model import rewrite
from tests.torch_interop.export.divided import Middle, placements
from tests.torch_interop.export.test_export import close

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
