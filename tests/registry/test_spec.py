from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pjrt_bridge.errors import OptionError, PluginConflict, PluginLoadError
from pjrt_bridge.registry import PluginSpec, load
from pjrt_bridge.registry.spec import parse_reference, short_name


def test_spec_keeps_copies_that_cannot_change() -> None:
    options = {"devices": 2}
    spec = PluginSpec("chip", "/x/lib.so", options=options)
    options["devices"] = 3
    assert spec.options == {"devices": 2}
    with pytest.raises(TypeError):
        spec.options["devices"] = 4  # type: ignore[index]


def test_specs_of_equal_fields_are_equal_and_hash_alike() -> None:
    first, second = (PluginSpec("chip", "/x/lib.so", options={"a": [1, 2]}) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)


def test_path_is_absolute_with_the_home_folder_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert PluginSpec("chip", "~/lib.so").path == Path("/home/someone/lib.so")
    assert PluginSpec("chip", "lib.so").path == Path.cwd() / "lib.so"
    assert PluginSpec("chip", address=4096).path is None


@pytest.mark.parametrize("value", ["text", True, 7, -(2**63), 0.5, [1, 2], []])
def test_every_value_type_of_a_named_value_is_an_option(value: Any) -> None:
    kept = PluginSpec("chip", "/x/lib.so", options={"o": value}).options["o"]
    assert kept == value
    assert type(kept) is type(value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "plugin name: found ''"),
        ({"name": "a:b"}, "plugin name: found 'a:b'"),
        ({"name": "a/b"}, "plugin name"),
        ({"name": 3}, "plugin name: found 3"),
        ({"library": 3}, "plugin 'chip', library: found 3"),
        ({"library": ""}, "plugin 'chip', library: found ''"),
        ({"library": None, "address": 0}, "address: found 0"),
        ({"library": None, "address": True}, "address: found True"),
        ({"priority": "high"}, "priority: found 'high', expected an int"),
        ({"options": ["a"]}, "options: found \\['a'\\], expected a mapping"),
        ({"options": {1: 1}}, "options: found the name 1"),
        ({"options": {"o": None}}, "option 'o': found None of type NoneType, expected str"),
        ({"options": {"o": 2**63}}, "option 'o': found 9223372036854775808, expected a 64-bit"),
        ({"options": {"o": ["a"]}}, "option 'o': found 'a' of type str"),
        ({"options": {"o": [True]}}, "option 'o': found True of type bool"),
        ({"options": {"o": 1}, "option_types": {}}, "option 'o' is missing in its option_types"),
        ({"option_types": {"o": dict}}, "option_types: found"),
        ({"environment": {"A": 1}}, "environment: found 'A'=1, expected text"),
        ({"environment": {"A=B": "1"}}, "environment: 'A=B' cannot be a variable"),
        ({"environment": "A=B"}, "environment: found 'A=B', expected a mapping"),
    ],
)
def test_impossible_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PluginSpec(**{"name": "chip", "library": "/x/lib.so", **fields})


def test_an_address_may_be_a_function_that_is_called_when_it_is_needed() -> None:
    asked: list[int] = []
    spec = PluginSpec("chip", address=lambda: asked.append(1) or 4096)
    assert not asked
    assert spec.table_address() == 4096
    assert asked == [1]


def test_a_function_that_gives_no_address_is_named() -> None:
    def broken() -> int:
        raise ValueError("no chip")

    with pytest.raises(PluginLoadError, match="'chip', address: ValueError: no chip"):
        load(PluginSpec("chip", address=broken))
    with pytest.raises(OptionError, match="'chip', address: found None, expected a PJRT_Api's"):
        load(PluginSpec("chip", address=lambda: None))  # type: ignore[arg-type, return-value]


def test_listing_plugins_imports_none_that_is_written_in_python() -> None:
    program = (
        "import sys\nfrom pjrt_bridge.registry import plugins\n"
        "assert 'reference' in [info.name for info in plugins()]\n"
        "assert 'pjrt_bridge_reference' in sys.modules\n"
        "print([name for name in sys.modules if name.startswith('pjrt_bridge_reference.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['pjrt_bridge_reference.version']"


def test_exactly_one_of_library_and_address() -> None:
    with pytest.raises(PluginConflict, match="expected one of library and address, found neither"):
        PluginSpec("chip")
    with pytest.raises(PluginConflict, match="expected one of library and address, found both"):
        PluginSpec("chip", "/x/lib.so", address=4096)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("xla_cpu_pjrt", "cpu"),
        ("pjrt_c_api_cpu_plugin", "cpu"),
        ("libcpu", "cpu"),
        ("xla_cuda12", "cuda12"),
        ("pjrt_plugin_iree_cpu", "iree_cpu"),
        ("my-chip", "my_chip"),
        ("plugin", "plugin"),
        ("lib", "plugin"),
        ("lib.chip_", "chip"),
        ("__", "plugin"),
    ],
)
def test_short_name(text: str, name: str) -> None:
    assert short_name(text) == name


@pytest.mark.parametrize(
    ("text", "name", "library"),
    [
        ("/opt/libchip.so", "chip", "/opt/libchip.so"),
        ("/opt/libchip.so.2.1", "chip", "/opt/libchip.so.2.1"),
        ("libchip.so", "chip", "libchip.so"),
        ("mine:/opt/libchip.so", "mine", "/opt/libchip.so"),
        (" mine:rel/lib.so ", "mine", "rel/lib.so"),
        ("/opt/a:b/libchip.so", "chip", "/opt/a:b/libchip.so"),
    ],
)
def test_reference_with_a_path_is_a_spec(text: str, name: str, library: str) -> None:
    spec = parse_reference(text, source="here", priority=3)
    assert isinstance(spec, PluginSpec)
    assert (spec.name, spec.library, spec.source, spec.priority) == (name, library, "here", 3)


def test_reference_without_a_path_is_a_name() -> None:
    assert parse_reference(" cpu ", source="here") == "cpu"


@pytest.mark.parametrize("text", ["", "mine:", "two words", ":x"])
def test_reference_that_is_neither(text: str) -> None:
    with pytest.raises(OptionError, match=r"^here: "):
        parse_reference(text, source="here")


def test_json_file_brings_library_and_options(tmp_path: Path) -> None:
    config = {"library_path": "/opt/libchip.so", "create_options": {"devices": 2, "ids": [0, 1]}}
    file = tmp_path / "chip.json"
    file.write_text(json.dumps(config))
    spec = parse_reference(f"mine:{file}", source="here")
    assert isinstance(spec, PluginSpec)
    assert spec.library == "/opt/libchip.so"
    assert spec.options == {"devices": 2, "ids": [0, 1]}
    unnamed = parse_reference(str(file), source="here")
    assert isinstance(unnamed, PluginSpec)
    assert unnamed.name == "chip"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "expected an object with the field 'library_path'"),
        ('{"create_options": {}}', "expected an object with the field 'library_path'"),
        ('{"library_path": "/x.so", "create_options": {"o": {}}}', "option 'o': found {}"),
        ('{"library_path": "/x.so", "create_options": 3}', "expected a mapping"),
        (None, "cannot be read as JSON: .*No such file"),
    ],
)
def test_json_file_that_cannot_be_used(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "chip.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(OptionError, match=message):
        parse_reference(str(file), source="here")
