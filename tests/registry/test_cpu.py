"""The package `pjrt-bridge-cpu` and the way from its hook to a client."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

import pjrt_bridge_cpu
from pjrt_bridge.errors import OptionError, PluginNotFound
from pjrt_bridge.registry import PluginSpec, client, load, plugins, refresh, select, slower
from pjrt_bridge_cpu.aten import VARIABLE, library

NAMED: Any = SimpleNamespace(name="cpu")
"""What the hook sees of the plugin."""


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_BRIDGE_PLUGIN", raising=False)
    monkeypatch.delenv("PJRT_NAMES_AND_LIBRARY_PATHS", raising=False)
    refresh()


def test_the_package_speaks_for_the_wheel() -> None:
    (info,) = [info for info in plugins() if info.name == "cpu"]
    assert info.available
    assert info.source.startswith("entry point cpu of pjrt-bridge-cpu ")
    assert info.library is not None
    assert info.library.name == "xla_cpu_pjrt.so"


def test_without_the_wheel_the_hook_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
    with pytest.raises(PluginNotFound, match="pip install xla-cpu-pjrt"):
        pjrt_bridge_cpu.pjrt_bridge_plugins()


def test_client_options_come_from_the_package_and_from_the_caller() -> None:
    assert len(client("cpu").devices) == 1
    assert len(client("cpu", cpu_device_count=2).devices) == 2


def test_a_client_is_shared_by_equal_options() -> None:
    first = client("cpu")
    assert client("cpu", cpu_device_count=1) is first
    assert client(select("cpu")) is first
    assert client("cpu", cpu_device_count=2) is not first


def test_a_library_is_loaded_once_under_all_its_paths(tmp_path: Any) -> None:
    library = select("cpu").library
    assert library is not None
    link = tmp_path / "link.so"
    link.symlink_to(library)
    assert load(link) is load("cpu")


def test_a_misspelt_or_mistyped_option_never_reaches_the_library() -> None:
    with pytest.raises(OptionError, match="no option 'cpu_devices_count'"):
        client("cpu", cpu_devices_count=2)
    with pytest.raises(OptionError, match="found 'two' of type str, expected int"):
        client("cpu", cpu_device_count="two")
    with pytest.raises(OptionError, match="client of plugin 'cpu', option 'x': found None"):
        client("cpu", x=None)  # type: ignore[arg-type]


def test_an_address_is_taken_once() -> None:
    address = load("cpu").api.address
    spec = PluginSpec("by-address", address=address)
    assert load(spec) is load(spec)
    assert load(spec).name == "by-address"


def test_long_sums_are_left_to_pytorch_where_programs_cannot_call_its_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    found = pjrt_bridge_cpu.pjrt_bridge_slower(NAMED)
    assert found == {**pjrt_bridge_cpu.SLOWER, **pjrt_bridge_cpu.SLOWER_BY_ITSELF}
    assert found["aten.cumsum"] >= 1000


@pytest.mark.parametrize("at_hand", [True, False])
def test_long_sums_are_calls_where_pytorch_is_at_hand(
    at_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "on")
    monkeypatch.setattr(library, "is_at_hand", lambda: at_hand)
    found = pjrt_bridge_cpu.pjrt_bridge_slower(NAMED)
    assert found is not None
    assert ("aten.cumsum" in found) == (not at_hand)


def test_a_plugin_of_another_name_is_not_spoken_for() -> None:
    assert slower(load("reference")) == {}
