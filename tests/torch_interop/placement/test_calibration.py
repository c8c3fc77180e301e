"""What PyTorch computes faster goes to PyTorch, from the size on where that was measured."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pjrt_bridge import registry, storage
from pjrt_bridge.errors import BridgeWarning, OptionError
from pjrt_bridge.runtime import Client, Plugin
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.placement import calibration
from pjrt_bridge.torch_interop.placement.calibration import Measured, thresholds

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def used() -> Client:
    """The client that the backend uses."""
    return registry.client("cpu")


@pytest.fixture
def measured(used: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine on which sorting 100 elements is faster in PyTorch, and nothing else."""
    monkeypatch.setenv(storage.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(calibration.VARIABLE, str(tmp_path))
    path = calibration.save(used, [Measured("aten.sort", 100, 1.0, 0.1)])
    assert path.is_relative_to(tmp_path)
    yield path
    calibration._read.cache_clear()


def function(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sort().values.exp()


def placements(size: int, **options: Any) -> list[str]:
    compiled = torch.compile(function, backend="pjrt", options=options, dynamic=False)
    x = torch.randn(size)
    torch.testing.assert_close(compiled(x), function(x))
    return [segment.placement for graph in compiled_graphs() for segment in graph.segments]


@pytest.mark.filterwarnings("error")
def test_large_tensors_go_to_the_host_without_a_warning(measured: Path) -> None:
    assert placements(100) == ["device", "host", "device"]
    reasons = [found.reason for graph in compiled_graphs() for found in graph.fallback_reasons]
    assert reasons == ["PyTorch was measured to be faster from 100 elements on"]


def test_smaller_ones_stay(measured: Path) -> None:
    assert placements(99) == ["device"]


@pytest.mark.parametrize("options", [{"placement": "device"}, {"fallback": "error"}])
def test_it_can_be_declined(measured: Path, options: dict[str, Any]) -> None:
    assert placements(1000, **options) == ["device"]


def test_the_report_says_what_to_do(measured: Path) -> None:
    from pjrt_bridge.torch_interop import explain

    report = str(explain(torch.compile(function, backend="pjrt"), torch.randn(200)))
    text = " ".join(report.split())
    assert "PyTorch was measured to be" in text
    assert '"placement": "device"' in text


def test_what_packages_say_counts_where_nothing_was_measured(
    used: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(storage.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(calibration.VARIABLE, str(tmp_path))
    monkeypatch.setattr(registry, "slower", lambda plugin: {"aten.sort.default": 50})
    assert calibration.slower_operators(used) == {"aten.sort.default": 50}
    assert placements(60) == ["device", "host", "device"]
    calibration.save(used, [])
    assert calibration.slower_operators(used) == {}


def test_another_placement_is_refused() -> None:
    with pytest.raises(Exception, match="option placement: found 'gpu', expected 'auto'"):
        placements(10, placement="gpu")


def item(elements: int, ratio: float, host: float = 1e-3) -> Measured:
    return Measured("aten.sort", elements, ratio * host, host)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([item(10, 5), item(100, 5)], {"aten.sort": 10}),
        ([item(10, 0.5), item(100, 5)], {"aten.sort": 100}),
        ([item(10, 5), item(100, 0.5)], {}),
        ([item(10, 5), item(100, 1.0), item(1000, 4)], {"aten.sort": 10}),
        ([item(10, 1.1), item(100, 1.2)], {}),
        ([item(10, 9, host=1e-6), item(100, 9, host=1e-3)], {"aten.sort": 100}),
        ([], {}),
    ],
)
def test_thresholds(sizes: list[Measured], expected: dict[str, int]) -> None:
    assert thresholds(sizes) == expected


@pytest.mark.parametrize("content", ["", "{}", '{"slower": 3}', '{"slower": {"aten.sort": "x"}}'])
def test_a_damaged_file_is_named(measured: Path, used: Client, content: str) -> None:
    measured.write_text(content)
    calibration._read.cache_clear()
    with pytest.raises(OptionError, match=r"no calibration .*pjrt-bridge calibrate"):
        calibration.slower_operators(used)


def test_a_plugin_without_a_library_cannot_be_kept(plugin: Plugin, tmp_path: Path) -> None:
    unknown = Plugin.from_address(plugin.api.address, name="at an address")
    with unknown.client({"cpu_device_count": 1}) as client:
        assert calibration.path_for(client) is None
        with pytest.raises(OptionError, match="at an address"):
            calibration.save(client, [])


def test_what_was_measured_is_read_and_not_written_where_files_are_off(
    measured: Path, used: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(storage.FOLDER_VARIABLE, "off")
    assert calibration.slower_operators(used) == {"aten.sort": 100}
    before = measured.read_bytes()
    with pytest.raises(OptionError, match="PJRT_BRIDGE_CACHE is off, so no file is written"):
        calibration.save(used, [])
    assert measured.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no user ids")
def test_measurements_that_others_can_write_are_not_used(
    measured: Path, used: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "slower", lambda plugin: {})
    calibration._read.cache_clear()
    measured.parent.chmod(0o777)
    with pytest.warns(BridgeWarning, match="has mode 0777"):
        assert calibration.slower_operators(used) == {}
    with pytest.raises(OptionError, match=r"cannot be kept: .* has mode 0777"):
        calibration.save(used, [])


def test_measuring() -> None:
    found = list(calibration.measure("cpu", ["aten.cumsum"], longest=0))
    assert [(entry.operator, entry.elements) for entry in found] == [("aten.cumsum", 1000)]
    assert all(entry.device >= 0 and entry.host > 0 for entry in found)
    with pytest.raises(OptionError, match=r"no operator 'aten\.nope' to calibrate"):
        list(calibration.measure("cpu", ["aten.nope"]))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", list(calibration.CASES))
def test_every_case_is_of_its_operator(name: str) -> None:
    case, sizes = calibration.CASES[name]
    made, arguments = case(sizes[0])
    torch.compile(made, backend="pjrt", options={"placement": "device"})(*arguments)
    names = {
        operator.rpartition(".")[0]
        for graph in compiled_graphs()
        for segment in graph.segments
        if segment.placement == "device"
        for operator in segment.operators
    }
    assert name in names


def test_the_file_tells_what_was_measured(measured: Path) -> None:
    data = json.loads(measured.read_text())
    assert data["plugin"] == "cpu"
    assert data["slower"] == {"aten.sort": 100}
    assert data["measured"] == [
        {"operator": "aten.sort", "elements": 100, "device": 1.0, "host": 0.1}
    ]
