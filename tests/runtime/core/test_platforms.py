"""What is stated of platforms; the core itself names no device."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import pjrt_bridge
from pjrt_bridge.errors import BridgeWarning, OptionError
from pjrt_bridge.runtime.core import platforms
from pjrt_bridge.runtime.core.platforms import PlatformSpec


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "platform name: found ''"),
        ({"name": 3}, "platform name: found 3"),
        (
            {"compiler_flags": {"f": None}},
            r"platform 'chip', compiler_flags: .*\['f'\]: found None",
        ),
        ({"compiler_flags": 3}, "platform 'chip', compiler_flags: .*expected a mapping"),
        ({"tuning_flags": 3}, "platform 'chip', tuning_flags: .*expected a mapping"),
        ({"ahead_flags": 3}, "platform 'chip', ahead_flags: .*expected a mapping"),
        ({"program_flags": {}}, "platform 'chip', program_flags: found .*expected a function"),
        ({"dlpack_device_type": "2"}, "dlpack_device_type: found '2', expected an int"),
        ({"option_types": {"o": dict}}, "platform 'chip', option_types: found"),
        ({"option_types": [("o", int)]}, "option_types: found"),
        ({"fatal_constants": "float32"}, "fatal_constants: found 'float32', expected a tuple"),
        ({"fatal_constants": ("",)}, "fatal_constants: found .*expected a tuple"),
        ({"fatal_constants": ("f32",)}, "fatal_constants: there is no element type 'f32'"),
        ({"call_forms": {"Qr": 3}}, "call_forms: found .*expected targets with a CallForm"),
        ({"call_forms": "Qr"}, "call_forms: found 'Qr'"),
        ({"versions": {81: PlatformSpec("chip")}}, "versions: found .*expected ranges"),
        ({"versions": {range(2): PlatformSpec("mesh")}}, "versions: found .*of the same name"),
    ],
)
def test_impossible_values(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PlatformSpec(**{"name": "chip", **fields})


def test_versions_of_the_api_may_differ() -> None:
    old = PlatformSpec("chip", compiler_flags={"a": 1})
    chip = PlatformSpec("chip", versions={range(80, 90): old})
    assert [chip.for_api((0, minor)) is old for minor in (79, 80, 89, 90)] == [0, 1, 1, 0]
    assert chip.for_api((1, 80)) is chip


def test_a_plugin_may_give_its_platform_no_name() -> None:
    found = platforms.find("", (0, 115))
    assert not found.compiler_flags
    assert not found.fatal_constants


def test_users_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "_warned", set())
    with pytest.warns(BridgeWarning, match="beware"):
        PlatformSpec("chip", warning="beware").warn()
    PlatformSpec("chip", warning="beware").warn()
    PlatformSpec("chip").warn()


PACKAGE = Path(pjrt_bridge.__file__).parent
DEVICES = re.compile(r"(cpu|gpu|cuda|rocm|tpu)|.*(onednn|libtpu|(cpu|gpu|cuda|tpu)_).*", re.DOTALL)
"""A device's name as a word of its own, or as a part of a name that a plugin reads."""
ELSEWHERE = (
    # The functions and extensions of the C API, by their names.
    "abi/",
    # Frameworks have names for devices of their own, of which none is a plugin's.
    "torch_interop/",
    "tf_interop/",
    # Which packages there are to install.
    "registry/catalogue.py",
)


def texts(path: Path) -> list[str]:
    """The strings of a module that are no docstrings."""
    tree = ast.parse(path.read_text())
    said = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
    ]


def test_the_core_names_no_device() -> None:
    found = {
        name: naming
        for path in sorted(PACKAGE.rglob("*.py"))
        if not (name := path.relative_to(PACKAGE).as_posix()).startswith(ELSEWHERE)
        if (naming := [text for text in texts(path) if DEVICES.fullmatch(text.lower())])
    }
    # Platforms of which JAX has rules of its own, by JAX's names.
    assert set(found.pop("jax_interop/functions.py")) == {"cuda", "gpu", "rocm", "tpu"}
    assert found == {"extensions/tables.py": ["Gpu_Custom_Call"]}
