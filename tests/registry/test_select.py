from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pjrt_bridge.errors import (
    OptionError,
    PluginConflict,
    PluginLoadError,
    PluginNotFound,
)
from pjrt_bridge.registry import PluginSpec, client, load, plugins, refresh, select
from tests.registry.conftest import Site, compile_library


def hooked(site: Site, name: str, library: Path, *, priority: int = 0, package: str = "") -> None:
    package = package or f"{name}-bridge"
    site.hook(
        package,
        f"{package}_hook".replace("-", "_"),
        "@hookimpl\ndef pjrt_bridge_plugins():\n"
        f"    return PluginSpec({name!r}, {str(library)!r}, priority={priority})",
        name=package,
    )


def test_the_variable_of_jax(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = site.library("a.so"), site.library("b.so")
    config = site.folder / "b.json"
    config.write_text(json.dumps({"library_path": str(second), "create_options": {"n": 2}}))
    gone = site.folder / "gone.so"
    value = f"a:{first}, b:{config},c:{gone},oops,d:{site.folder}/d.json,e:{site.folder},"
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", value)
    found = {info.name: info for info in plugins()}
    assert set(found) == {"a", "b", "c", "d", "e", "oops"}
    assert (found["a"].library, found["a"].available) == (first, True)
    assert found["b"].library == second
    assert found["b"].spec is not None
    assert found["b"].spec.options == {"n": 2}
    assert found["c"].reason == f"{gone} does not exist"
    assert found["oops"].reason == "found 'oops', expected name:path"
    assert "d.json: cannot be read as JSON" in (found["d"].reason or "")
    assert found["e"].reason == f"{site.folder} is no file"
    assert {info.source for info in found.values()} == {"PJRT_NAMES_AND_LIBRARY_PATHS"}


def test_the_default_is_the_available_plugin_of_the_highest_priority(site: Site) -> None:
    hooked(site, "a", site.library("a.so"), priority=-1)
    hooked(site, "b", site.library("b.so"), priority=9)
    hooked(site, "gone", site.folder / "gone.so", priority=99)
    assert [info.name for info in plugins()] == ["b", "a", "gone"]
    assert select().name == "b"


def test_equal_priorities_are_ordered_by_entry_point(site: Site) -> None:
    for name in ("b", "a", "c"):
        hooked(site, name, site.library(f"{name}.so"))
    assert [info.name for info in plugins()] == ["a", "b", "c"]


def test_added_by_hand_comes_before_installed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    hooked(site, "chip", site.library("chip.so"), priority=99)
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"mine:{site.library('mine.so')}")
    assert select().name == "mine"


def test_the_variable_selects_a_name(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    hooked(site, "low", site.library("low.so"), priority=-1)
    hooked(site, "high", site.library("high.so"), priority=9)
    monkeypatch.setenv("PJRT_BRIDGE_PLUGIN", "low")
    assert select().name == "low"
    assert select("high").name == "high"
    monkeypatch.setenv("PJRT_BRIDGE_PLUGIN", "lwo")
    with pytest.raises(
        PluginNotFound, match=r"plugin 'lwo' \(asked for by PJRT_BRIDGE_PLUGIN\) was not found"
    ):
        select()


@pytest.mark.parametrize("form", ["{path}", "mine:{path}"])
def test_the_variable_brings_a_library(
    site: Site, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    path = site.library("libmine.so")
    hooked(site, "mine", site.library("other.so"), priority=9)
    monkeypatch.setenv("PJRT_BRIDGE_PLUGIN", form.format(path=path))
    info = select()
    assert (info.name, info.library, info.source) == ("mine", path, "PJRT_BRIDGE_PLUGIN")
    assert select("mine") == info
    assert [(i.available, i.reason) for i in plugins()] == [
        (True, None),
        (False, "the name belongs to the plugin from PJRT_BRIDGE_PLUGIN"),
    ]


def test_the_variable_with_a_missing_library_does_not_fall_through(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooked(site, "mine", site.library("other.so"))
    monkeypatch.setenv("PJRT_BRIDGE_PLUGIN", f"mine:{site.folder}/gone.so")
    expected = (
        rf"plugin 'mine' \(asked for by PJRT_BRIDGE_PLUGIN\) is unavailable: {site.folder}/gone.so "
        "does not exist"
    )
    with pytest.raises(PluginNotFound, match=f"^{expected}$"):
        select()


def test_the_variable_that_cannot_be_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    hooked(site, "mine", site.library("other.so"))
    monkeypatch.setenv("PJRT_BRIDGE_PLUGIN", "two words")
    assert [info.name for info in plugins()] == ["mine", "two words"]
    with pytest.raises(OptionError, match="PJRT_BRIDGE_PLUGIN: found 'two words', expected"):
        select()


def test_a_failed_hook_claims_no_name(site: Site) -> None:
    site.hook("chip-bridge", "raising_hook", "raise OSError('no driver')", name="chip")
    path = site.folder / "jax_plugins" / "xla_chip" / "xla_chip_plugin.so"
    path.parent.mkdir(parents=True)
    path.touch()
    assert select("chip").library == path


def test_two_packages_that_claim_one_name_are_a_conflict(site: Site) -> None:
    hooked(site, "chip", site.library("a.so"), package="first")
    hooked(site, "chip", site.library("b.so"), package="second")
    hooked(site, "other", site.library("c.so"))
    assert [(info.name, info.available) for info in plugins()] == [
        ("other", True),
        ("chip", False),
        ("chip", False),
    ]
    assert {info.reason for info in plugins() if not info.available} == {
        "2 plugins of equal standing claim the name 'chip'"
    }
    with pytest.raises(
        PluginConflict, match=r"claimed by entry point first of .* and by entry point second"
    ):
        select("chip")
    assert select().name == "other"


def test_an_earlier_source_settles_a_conflict(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    hooked(site, "chip", site.library("a.so"), package="first")
    hooked(site, "chip", site.library("b.so"), package="second")
    mine = site.library("mine.so")
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"chip:{mine}")
    assert select("chip").library == mine


def test_not_found_lists_everything_and_what_to_do(site: Site) -> None:
    with pytest.raises(PluginNotFound, match=r"no plugin is available:\n  nothing was found\n"):
        select()
    hooked(site, "gone", site.folder / "gone.so")
    refresh()
    with pytest.raises(PluginNotFound) as caught:
        select("chip")
    text = str(caught.value)
    assert text.startswith("plugin 'chip' was not found:\n  gone: unavailable: ")
    assert "gone.so does not exist (from entry point gone-bridge of gone-bridge 1.0" in text
    assert "pip install pjrt-bridge-cpu" in text
    assert "PJRT_BRIDGE_PLUGIN" in text
    with pytest.raises(PluginNotFound, match="no plugin is available:\n  gone: unavailable"):
        select()
    hooked(site, "here", site.library("here.so"))
    refresh()
    with pytest.raises(PluginNotFound, match="Name an available one, or point"):
        select("chip")


def test_an_explicit_path_or_specification(site: Site) -> None:
    path = site.library("libmine.so")
    for given in (path, str(path), f"mine:{path}", PluginSpec("mine", path, source="argument")):
        info = select(given)
        assert (info.name, info.library, info.source) == ("mine", path, "argument")
    assert plugins() == []
    with pytest.raises(PluginNotFound, match=r"plugin 'gone': .*gone\.so does not exist"):
        select(site.folder / "gone.so")


def test_discovery_imports_no_framework_and_loads_no_library() -> None:
    script = """
import sys
from pathlib import Path
from pjrt_bridge.registry import plugins

libraries = [info.library.name for info in plugins() if info.library]
mapped = Path("/proc/self/maps").read_text()
print([name for name in ("torch", "jax", "jaxlib", "tensorflow") if name in sys.modules])
print(bool(libraries), [name for name in libraries if name in mapped])
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "True []"]


def test_a_file_that_is_no_library_fails_when_loaded(site: Site) -> None:
    hooked(site, "chip", site.library())
    with pytest.raises(PluginLoadError, match=r"plugin 'chip': .*libchip\.so cannot be loaded"):
        load("chip")


def test_a_library_without_the_entry_function(site: Site) -> None:
    path = compile_library(site.folder / "libempty.so", "int nothing(void) { return 0; }")
    with pytest.raises(PluginLoadError, match="exports no GetPjrtApi"):
        client(path)


def test_the_environment_is_set_unless_the_user_has_set_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "#include <stdlib.h>\n#include <stdio.h>\n"
        "__attribute__((constructor)) static void say(void) {"
        ' FILE *out = fopen(getenv("CHIP_OUT"), "w");'
        ' fprintf(out, "%s", getenv("CHIP_MODE")); fclose(out); }'
    )
    out = site.folder / "out.txt"
    monkeypatch.setenv("CHIP_OUT", str(out))
    # Registered with monkeypatch so that what loading sets is removed again.
    monkeypatch.setenv("CHIP_MODE", "")
    monkeypatch.delenv("CHIP_MODE")
    for name, expected in (("a", "fast"), ("b", "mine")):
        path = compile_library(site.folder / f"lib{name}.so", source)
        with pytest.raises(PluginLoadError):
            load(PluginSpec(name, path, environment={"CHIP_MODE": "fast"}))
        assert out.read_text() == expected
        monkeypatch.setenv("CHIP_MODE", "mine")
