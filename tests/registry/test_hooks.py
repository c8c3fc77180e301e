from __future__ import annotations

from typing import Any

import pytest

from pjrt_bridge.errors import BridgeWarning, OptionError
from pjrt_bridge.registry import (
    PlatformSpec,
    accessors,
    kernels,
    lowerings,
    platform_specs,
    plugins,
    refresh,
    slower,
)
from pjrt_bridge.runtime import Client, Plugin
from pjrt_bridge.runtime.core import platforms
from pjrt_bridge.runtime.core.create_options import check_client_options
from tests.registry.conftest import Site


def by_name() -> dict[str, tuple[bool, str | None]]:
    return {info.name: (info.available, info.reason) for info in plugins()}


def test_a_hook_brings_one_plugin(site: Site) -> None:
    library = site.library()
    site.hook(
        "chip-bridge",
        "chip_hook",
        f"""
        @hookimpl
        def pjrt_bridge_plugins():
            return PluginSpec(
                "chip", {str(library)!r}, options={{"devices": 2}}, environment={{"A": "1"}},
                priority=7, source="ignored", description="a chip",
            )
        """,
    )
    (info,) = plugins()
    assert (info.name, info.available, info.reason) == ("chip", True, None)
    assert (info.library, info.priority) == (library, 7)
    assert info.source == "entry point chip_hook of chip-bridge 1.0"
    assert info.spec is not None
    assert info.spec.source == info.source
    assert info.spec.options == {"devices": 2}
    assert str(info) == f"chip: available (from {info.source}, {library})"


def test_a_hook_brings_several_plugins_or_none(site: Site) -> None:
    site.hook(
        "several",
        "several_hook",
        """
        @hookimpl
        def pjrt_bridge_plugins():
            yield PluginSpec("one", address=4096)
            yield PluginSpec("two", address=8192)
        """,
    )
    site.hook(
        "none",
        "none_hook",
        """
        @hookimpl
        def pjrt_bridge_plugins():
            return None
        """,
    )
    assert by_name() == {"one": (True, None), "two": (True, None)}


def test_an_entry_point_may_name_an_object(site: Site) -> None:
    site.install(
        "objects",
        entry_points={"pjrt_bridge": {"o": "object_hook:hooks"}},
        files={
            "object_hook.py": """
            from pjrt_bridge.registry import PluginSpec, hookimpl

            class Hooks:
                @hookimpl
                def pjrt_bridge_plugins(self):
                    return [PluginSpec("chip", address=4096)]

            hooks = Hooks()
            """
        },
    )
    assert by_name() == {"chip": (True, None)}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ValueError('no driver')", "ValueError: no driver"),
        ("raise ValueError", "ValueError: no message"),
        ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
        ("x = 1", "implements no hook; known hooks: pjrt_bridge_extensions, "),
        ("@hookimpl\ndef pjrt_bridge_other():\n    pass", "implements no hook"),
        (
            "def pjrt_bridge_plugins():\n    pass",
            "implements no hook; pjrt_bridge_plugins is not marked with hookimpl, so it is never "
            "called; known hooks: ",
        ),
        ("@hookimpl\ndef pjrt_bridge_plugins(oops):\n    pass", "PluginValidationError: "),
        ("@hookimpl\ndef pjrt_bridge_plugins():\n    1 / 0", "by zero (bad_hook.py, line 4)"),
        (
            "from pjrt_bridge.registry import wheel_library\n@hookimpl\n"
            "def pjrt_bridge_plugins():\n    wheel_library('chip-wheel', 'x.so')",
            "the wheel 'chip-wheel' is not installed: pip install chip-wheel",
        ),
        ("@hookimpl\ndef pjrt_bridge_plugins():\n    return 3", "pjrt_bridge_plugins returned 3"),
        ("@hookimpl\ndef pjrt_bridge_plugins():\n    return 'ab'", "returned 'a' among others"),
        ("@hookimpl\ndef pjrt_bridge_plugins():\n    return PluginSpec('x')", "found neither"),
        (
            "@hookimpl\ndef pjrt_bridge_plugins():\n"
            "    yield PluginSpec('x', address=1)\n    raise OSError('late')",
            "OSError: late",
        ),
    ],
)
def test_a_hook_that_fails_costs_only_itself(site: Site, source: str, reason: str) -> None:
    site.install(
        "bad",
        entry_points={"pjrt_bridge": {"bad": "bad_hook"}},
        files={"bad_hook.py": "from pjrt_bridge.registry import PluginSpec, hookimpl\n" + source},
    )
    good = "@hookimpl\ndef pjrt_bridge_plugins():\n    return PluginSpec('good', address=4096)"
    site.hook("good", "good_hook", good)
    first, second = plugins()
    assert (first.name, first.available) == ("good", True)
    assert (second.name, second.available) == ("bad", False)
    assert second.source == "entry point bad of bad 1.0"
    assert second.reason is not None
    assert reason in second.reason
    assert "\n" not in second.reason


@pytest.mark.parametrize(
    ("source", "warning"),
    [
        ("def pjrt_bridge_slower(plugin): ...", "pjrt_bridge_slower is not marked with hookimpl"),
        (
            "@hookimpl\ndef pjrt_bridge_lowering(plugin): ...",
            "pjrt_bridge_lowering is no hook that this version knows.*pjrt_bridge_lowerings, ",
        ),
        ("def pjrt_bridge_helper(): ...\npjrt_bridge_slower = 3", None),
    ],
)
def test_functions_that_are_never_called_are_named(
    site: Site, source: str, warning: str | None
) -> None:
    plugin = "@hookimpl\ndef pjrt_bridge_plugins():\n    return PluginSpec('chip', address=4096)\n"
    site.hook("chip-bridge", "chip_hook", plugin + source)
    if warning is None:
        assert list(by_name()) == ["chip"]
        return
    with pytest.warns(BridgeWarning, match=f"entry point chip_hook of chip-bridge 1.0: {warning}"):
        assert list(by_name()) == ["chip"]


def test_two_entry_points_of_one_module_are_told_apart(site: Site) -> None:
    source = "@hookimpl\ndef pjrt_bridge_plugins():\n    return PluginSpec('chip', address=4096)"
    site.hook("first", "shared_hook", source, name="a")
    site.install("second", entry_points={"pjrt_bridge": {"b": "shared_hook"}})
    assert by_name() == {
        "chip": (True, None),
        "b": (False, "another entry point names the same module"),
    }


def test_a_package_installed_later_is_found_after_refresh(site: Site) -> None:
    assert plugins() == []
    source = "@hookimpl\ndef pjrt_bridge_plugins():\n    return PluginSpec('chip', address=4096)"
    site.hook("chip-bridge", "late_hook", source)
    assert plugins() == []
    refresh()
    assert list(by_name()) == ["chip"]


class Loaded:
    """What a lowering hook sees of a loaded plugin."""

    name = "chip"


class Connected:
    """What a lowering hook sees of a client."""

    plugin = Loaded()
    devices = 3


def test_lowerings_are_merged_for_the_plugin(site: Site) -> None:
    site.hook(
        "a",
        "lowering_a",
        """
        @hookimpl
        def pjrt_bridge_lowerings(plugin):
            return {"aten.mm.default": len} if plugin.name == "chip" else None
        """,
    )
    site.hook(
        "b",
        "lowering_b",
        """
        @hookimpl
        def pjrt_bridge_lowerings(plugin, client):
            return {"aten.add.Tensor": abs} if client.devices == 3 else None
        """,
    )
    client: Any = Connected()
    assert lowerings(client) == {"aten.mm.default": len, "aten.add.Tensor": abs}
    assert plugins() == []


def test_a_second_lowering_of_one_operator_is_named_and_left_out(site: Site) -> None:
    for package, value in (("a", "len"), ("b", "abs")):
        site.hook(
            package,
            f"twice_{package}",
            f"@hookimpl\ndef pjrt_bridge_lowerings(plugin):\n    return {{'op': {value}}}",
        )
    client: Any = Connected()
    with pytest.warns(BridgeWarning, match="twice_b of b 1.0: its lowering of op is not used"):
        assert lowerings(client) == {"op": len}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise OSError('no table')", r"OSError: no table \(fails_a.py, line 4\)"),
        ("return [1]", r"found \[1\], expected a mapping of operator names to functions"),
        ("return {1: abs}", r"found \{1: .*, expected a mapping of operator names to functions"),
        ("return {'op': 'abs'}", "op: found 'abs', expected a function"),
    ],
)
def test_a_lowering_hook_that_fails_is_named_and_left_out(
    site: Site, body: str, reason: str
) -> None:
    site.hook("a", "fails_a", f"@hookimpl\ndef pjrt_bridge_lowerings(plugin):\n    {body}")
    site.hook(
        "b", "works_b", "@hookimpl\ndef pjrt_bridge_lowerings(plugin):\n    return {'o': abs}"
    )
    client: Any = Connected()
    with pytest.warns(BridgeWarning, match=f"fails_a of a 1.0: .*'chip' are not used: {reason}"):
        assert lowerings(client) == {"o": abs}


def test_kernels_of_the_first_package_and_none_of_one_that_fails(site: Site) -> None:
    hook = "@hookimpl\ndef pjrt_bridge_kernels(plugin):\n    return {value}"
    for package, value in (("a", "1 / 0"), ("b", "None"), ("c", "len"), ("d", "abs")):
        site.hook(package, f"kernels_{package}", hook.format(value=value))
    client: Any = Connected()
    with pytest.warns(BridgeWarning) as said:
        assert kernels(client) is len
    texts = sorted(str(item.message) for item in said)
    assert "kernels_a of a 1.0: its kernels for plugin 'chip' are not used" in texts[0]
    assert "kernels_d of d 1.0: its set of kernels for chip is not used" in texts[1]


PULSE = """
from pjrt_bridge.abi.extension_structs import extension
from pjrt_bridge.extensions import Accessor

class Pulse(Accessor):
    TABLE = extension("Pulse 9001 (v1) Vendor_Pulse\\nbeat Vendor_Beat_Args: base, out i64 beats")

@hookimpl
def pjrt_bridge_extensions():
    return {classes}
"""


@pytest.mark.parametrize("classes", ["[Pulse]", "Pulse"])
def test_accessors_of_packages_stand_beside_the_built_in_ones(site: Site, classes: str) -> None:
    site.hook("a", "pulse_a", PULSE.replace("{classes}", classes))
    found = accessors()
    assert {"Profiler", "Pulse"} <= set(found)
    assert found["Pulse"].TABLE.type == 9001
    assert found["Pulse"].TABLE.size_needed("beat") == 32


def test_a_second_accessor_of_one_extension_is_named_and_left_out(site: Site) -> None:
    for package in "ab":
        site.hook(package, f"pulse_{package}", PULSE.replace("{classes}", "[Pulse]"))
    with pytest.warns(BridgeWarning, match="pulse_b of b 1.0: its accessor of Pulse is not used"):
        assert accessors()["Pulse"].__module__ == "pulse_a"


@pytest.mark.parametrize("classes", ["[1]", "[int]", "1 / 0", "7", "[Accessor]"])
def test_an_accessor_hook_that_fails_is_named_and_left_out(site: Site, classes: str) -> None:
    site.hook("a", "pulse_a", PULSE.replace("{classes}", classes))
    with pytest.warns(BridgeWarning, match="pulse_a of a 1.0: its accessors are not used"):
        assert "Pulse" not in accessors()


PLATFORM = """
from pjrt_bridge.registry import PlatformSpec

@hookimpl
def pjrt_bridge_platforms():
    return {value}
"""


def test_platforms_are_stated_by_packages(site: Site) -> None:
    one = "PlatformSpec('chip', compiler_flags={'a': 1}, option_types={'cores': range(1, 9)})"
    two = "(PlatformSpec('mesh', ffi_name='MESH2'), PlatformSpec('grid'))"
    site.hook("a", "platform_a", PLATFORM.replace("{value}", one))
    site.hook("b", "platform_b", PLATFORM.replace("{value}", two))
    site.hook("c", "platform_c", PLATFORM.replace("{value}", "None"))
    assert {"chip", "mesh", "grid"} <= set(platform_specs())
    assert platforms.find("chip", (0, 81)).compiler_flags == {"a": 1}
    assert platforms.find("mesh", (0, 81)).ffi_name == "MESH2"
    assert platforms.find("unheard of", (0, 81)) == PlatformSpec("unheard of")
    for value in (0, 9):
        with pytest.raises(
            OptionError, match=f"'cores' of plugin 'p': found {value}, expected 1 to"
        ):
            check_client_options({"cores": value}, None, plugin="p")
    assert check_client_options({"cores": 8}, None, plugin="p") == {"cores": 8}
    assert plugins() == []


def test_a_second_statement_of_one_platform_is_named_and_left_out(site: Site) -> None:
    for package, number in (("a", 1), ("b", 2)):
        value = f"PlatformSpec('chip', dlpack_device_type={number})"
        site.hook(package, f"platform_{package}", PLATFORM.replace("{value}", value))
    with pytest.warns(BridgeWarning, match="platform_b of b 1.0: its platform chip is not used"):
        assert platform_specs()["chip"].dlpack_device_type == 1


@pytest.mark.parametrize("value", ["1 / 0", "3", "['cpu']", "PlatformSpec('')"])
def test_a_platform_hook_that_fails_is_named_and_left_out(site: Site, value: str) -> None:
    site.hook("a", "platform_a", PLATFORM.replace("{value}", value))
    site.hook("b", "platform_b", PLATFORM.replace("{value}", "PlatformSpec('chip', ffi_name='X')"))
    with pytest.warns(BridgeWarning, match="platform_a of a 1.0: its platforms are not used"):
        assert platform_specs()["chip"].ffi_name == "X"


def test_a_platform_that_no_package_guards_is_warned_of(
    site: Site, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platforms, "_source", platform_specs)
    monkeypatch.setattr(platforms, "_warned", set())
    with (
        Client(plugin, {"cpu_device_count": 1}) as client,
        pytest.warns(BridgeWarning, match="pip install pjrt-bridge-cpu"),
    ):
        assert client.safe_flags == {}


def test_sizes_from_which_the_host_is_faster(site: Site) -> None:
    hook = "@hookimpl\ndef pjrt_bridge_slower(plugin):\n    return {{'aten.sort': {size}}}"
    site.hook("a", "slower_a", hook.format(size=500))
    site.hook("b", "slower_b", hook.format(size=7))
    site.hook("c", "slower_c", hook.format(size="'many'"))
    site.hook(
        "d", "slower_d", "@hookimpl\ndef pjrt_bridge_slower(plugin):\n    return ['aten.sort']"
    )
    plugin: Any = Loaded()
    with pytest.warns(BridgeWarning) as said:
        assert slower(plugin) == {"aten.sort": 500}
    texts = sorted(str(item.message) for item in said)
    assert "found ['aten.sort'], expected a mapping of operator names to numbers" in texts.pop()
    assert "slower_b of b 1.0: its size of aten.sort is not used" in texts[0]
    assert "aten.sort: found 'many', expected a number of elements" in texts[1]
