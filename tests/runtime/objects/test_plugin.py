"""Loading: one library, checked before anything in it is called."""

from pathlib import Path
from typing import Any

import pytest

from pjrt_bridge.errors import PluginIncompatible, PluginLoadError
from pjrt_bridge.runtime import Plugin
from tests.abi.fake_table import FakeTable
from tests.plugins import cpu_library, run_python
from tests.registry.conftest import compile_library


def test_what_a_plugin_says_about_itself(plugin: Plugin) -> None:
    assert plugin.name == "cpu"
    assert plugin.library == cpu_library().resolve()
    assert plugin.api_version == (0, 81)
    assert plugin.attributes["xla_version"] == 2
    assert plugin.stablehlo_version == "1.13.3"
    assert [extension.name for extension in plugin.extensions] == [
        "PhaseCompile",
        "FFI",
        "MemoryDescriptions",
        "Layouts",
    ]
    assert "'cpu', PJRT API 0.81" in repr(plugin)


def test_a_library_is_loaded_once(plugin: Plugin, tmp_path: Path) -> None:
    link = tmp_path / "link.so"
    link.symlink_to(cpu_library())
    assert Plugin.load(str(cpu_library()), name="cpu") is plugin
    assert Plugin.load(link, name="other") is plugin


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PluginLoadError, match=r"plugin 'x': there is no file .*nowhere\.so"):
        Plugin.load(tmp_path / "nowhere.so", name="x")
    with pytest.raises(PluginLoadError, match="there is no file"):
        Plugin.load(tmp_path, name="x")


@pytest.mark.parametrize("path", ["a\0b", 7])
def test_no_path_at_all(path: Any) -> None:
    with pytest.raises(PluginLoadError, match="is no path"):
        Plugin.load(path, name="x")


def test_not_a_library(tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("hello")
    with pytest.raises(PluginLoadError, match="cannot be loaded"):
        Plugin.load(text, name="x")


def test_a_truncated_library(tmp_path: Path) -> None:
    part = tmp_path / "part.so"
    with cpu_library().open("rb") as whole:
        part.write_bytes(whole.read(4096))
    with pytest.raises(PluginLoadError, match="cannot be loaded"):
        Plugin.load(part, name="x")


def test_a_library_without_the_entry(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "plain.so", "int answer(void) { return 42; }")
    with pytest.raises(PluginLoadError, match="exports no GetPjrtApi"):
        Plugin.load(library, name="x")


def test_a_library_that_needs_a_missing_one(tmp_path: Path) -> None:
    source = "int elsewhere(void); int (*const keep)(void) = elsewhere;"
    library = compile_library(tmp_path / "needy.so", source)
    with pytest.raises(PluginLoadError, match="elsewhere"):
        Plugin.load(library, name="x")


@pytest.mark.parametrize("answer", ["0", "(void*)8", "(void*)0x7fff00000000"])
def test_an_entry_that_returns_no_table(tmp_path: Path, answer: str) -> None:
    source = f"void *GetPjrtApi(void) {{ return {answer}; }}"
    library = compile_library(tmp_path / "empty.so", source)
    with pytest.raises(PluginIncompatible, match="which is no table"):
        Plugin.load(library, name="x")


def test_a_failed_load_can_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "late.so"
    with pytest.raises(PluginLoadError):
        Plugin.load(path, name="x")
    compile_library(path, "void *GetPjrtApi(void) { return 0; }")
    with pytest.raises(PluginIncompatible):
        Plugin.load(path, name="x")


def test_an_address(plugin: Plugin) -> None:
    other = Plugin.from_address(plugin.api.address, name="by-address", keepalive=plugin)
    assert (other.name, other.library) == ("by-address", None)
    assert f"{plugin.api.address:#x}" in repr(other)


def test_a_plugin_that_fails_to_initialize() -> None:
    table = FakeTable({"Plugin_Initialize": lambda args: 0xE110})
    with pytest.raises(Exception, match="PJRT_Plugin_Initialize"):
        Plugin.from_address(table.address, name="broken", keepalive=table)


def test_a_plugin_without_attributes() -> None:
    table = FakeTable()
    bare = Plugin.from_address(table.address, name="bare", keepalive=table)
    assert dict(bare.attributes) == {}
    assert bare.stablehlo_version is None


def test_a_plugin_that_returns_null_for_a_client() -> None:
    table = FakeTable()
    bare = Plugin.from_address(table.address, name="bare", keepalive=table)
    with pytest.raises(PluginIncompatible, match="plugin 'bare' returned no Client, but a NULL"):
        bare.client()


def test_loading_in_eight_threads_gives_one_plugin() -> None:
    run_python(
        """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(8) as pool:
            plugins = list(pool.map(lambda _: cpu_plugin(), range(8)))
            assert len(set(plugins)) == 1
            clients = list(pool.map(lambda plugin: plugin.client(), plugins))
            assert len(set(clients)) == 1
        """
    )
