"""`with pjrt_bridge.profile(...)` around real programs."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxlib import _profile_data

import pjrt_bridge
from pjrt_bridge import timeline
from pjrt_bridge.profiling import Profile
from pjrt_bridge.runtime import Client

ADD = """
module @add {
  func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %a : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""

pytestmark = pytest.mark.usefixtures("compiled_anew")


def names(found: Profile) -> set[str]:
    return set(found.totals())


def test_runtime_operations_are_on_it(client: Client) -> None:
    with pjrt_bridge.profile() as found:
        executable = client.compile(ADD)
        (result,) = executable(np.ones(4, np.float32))
        result.to_numpy()
    assert {"compile add", "launch add", "copy to host"} <= names(found)
    assert names(found) & {"share with device", "copy to device"}
    assert found.logdir is found.trace_file is None
    assert "cpu" in found.without
    assert timeline.current is None


def test_segments_name_the_nodes_of_the_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(torch.relu(x @ x)).abs().sin()

    compiled = torch.compile(function, backend="pjrt", options={"host_ops": ["aten.linalg_eig"]})
    compiled(torch.eye(4))
    with pjrt_bridge.profile() as found:
        compiled(torch.eye(4))
    spans = {
        item.name: (line.name, item)
        for plane in found.planes
        for line in plane.lines
        for item in line.spans
    }
    track, first = spans["inference segment 0"]
    assert track == "device cpu"
    assert first.details["nodes"] == "mm, relu"
    track, second = spans["inference segment 1"]
    assert track == "MainThread"
    assert second.details["nodes"] == "linalg_eig"
    _, node = spans["linalg_eig"]
    assert node.details["operator"] == "aten.linalg_eig.default"
    assert "test_session.py" in str(node.details["source"])
    assert second.start <= node.start <= node.end <= second.end
    assert first.end <= second.start, "segments run one after another while a profile is recorded"


def test_results_are_those_without_a_profile() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    compiled = torch.compile(model, backend="pjrt")
    x = torch.randn(3, 8)
    with pjrt_bridge.profile() as found:
        compiled(x).sum().backward()
    assert {"forward", "backward"} <= names(found)
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_files_are_where_tensorboard_looks(tmp_path: Path, client: Client) -> None:
    for _ in range(2):
        with pjrt_bridge.profile(tmp_path) as found:
            client.compile(ADD)
    runs = sorted((tmp_path / "plugins" / "profile").iterdir())
    assert len(runs) == 2, "two runs in one second have folders of their own"
    assert found.xspace_file is not None
    assert found.trace_file is not None
    assert found.xspace_file.name.endswith(".xplane.pb")
    assert found.xspace_file.parent == found.trace_file.parent == runs[1]
    data = _profile_data.ProfileData.from_file(str(found.xspace_file))
    # Plugins that other tests have loaded may have planes of their own.
    assert "/host:pjrt_bridge" in [plane.name for plane in data.planes]
    trace = json.loads(gzip.decompress(found.trace_file.read_bytes()))
    assert any(event["name"] == "compile add" for event in trace["traceEvents"])
    assert str(found.trace_file) in str(found)


def test_an_exception_passes_and_the_next_profile_works(client: Client) -> None:
    with pytest.raises(KeyError), pjrt_bridge.profile():
        raise KeyError("mine")
    with pjrt_bridge.profile() as outer:
        with pytest.raises(RuntimeError, match="already"), pjrt_bridge.profile():
            pass
        client.compile(ADD)
    assert "compile add" in names(outer)


def test_the_summary_is_readable(client: Client) -> None:
    with pjrt_bridge.profile() as found:
        client.compile(ADD)
    first, *_, last = str(found).splitlines()
    assert " ms " in first
    assert "1x" in first
    assert "cpu" in last
