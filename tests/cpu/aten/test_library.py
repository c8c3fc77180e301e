"""Where PyTorch's library is not, or is another one, programs go the portable way."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from pjrt_bridge.runtime import Client
from pjrt_bridge_cpu import aten
from pjrt_bridge_cpu.aten import _aten, library
from pjrt_bridge_cpu.aten.operators import BMM, LINEAR, MM, Operator
from pjrt_bridge_cpu.aten.uses import use_of


@pytest.fixture
def anew() -> Iterator[None]:
    """What is found is not what was found before, nor afterwards."""
    library._handler.cache_clear()
    yield
    library._handler.cache_clear()


def test_it_is_torchs(client: Client) -> None:
    path = library.library()
    assert path is not None
    assert path.name.startswith("libtorch_cpu")
    assert library.connect(client) == ""
    assert library.connect(client) == ""
    assert library.is_at_hand()


@pytest.mark.parametrize("spec", [None, ModuleSpec("torch", None)])
def test_no_library(
    anew: None, client: Client, monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert library.library() is None
    assert library.connect(client) == "PyTorch's library is not found"
    assert not library.is_at_hand()
    assert use_of(client) is None


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "has no function aoti_torch_create_tensor_from_blob"),
        (b"no library", "invalid ELF header|file too short|not a mach-o"),
    ],
)
def test_a_library_without_the_functions(
    anew: None,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    content: bytes | None,
    text: str,
) -> None:
    path = tmp_path / "libtorch_cpu.so"
    if content is None:
        path.write_bytes(Path(_aten.__file__).read_bytes())
    else:
        path.write_bytes(content)
    monkeypatch.setattr(library, "library", lambda: path)
    assert re.search(text, library.connect(client))
    assert not library.is_at_hand()


def test_the_module_was_not_built(
    anew: None, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(aten, "_aten")
    monkeypatch.setitem(sys.modules, "pjrt_bridge_cpu.aten._aten", None)
    assert "_aten" in library.connect(client)
    assert use_of(client) is None


@pytest.mark.parametrize(
    "schema",
    [
        MM.schema.replace("mat2", "other"),
        MM.schema.replace("Tensor mat2", "Tensor? mat2"),
        MM.schema.replace("mm.out", "mm.nowhere"),
        MM.schema.replace("mm.out", "no_operator"),
    ],
)
def test_an_operator_that_is_stated_otherwise(schema: str) -> None:
    assert library.is_stated_so(MM)
    assert not library.is_stated_so(Operator(schema))


def test_what_is_stated_otherwise_is_not_connected(
    anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    other = Operator(BMM.schema.replace("mat2", "other"))
    monkeypatch.setattr(library, "OPERATORS", (MM, other, LINEAR))
    monkeypatch.setattr(_aten, "connect", lambda path, operators: told.append(operators))
    assert library._handler() == _aten.HANDLER
    assert told == [(MM.signature, LINEAR.signature)]


@pytest.mark.parametrize(
    ("operators", "error"),
    [
        ([], TypeError),
        ((("aten::mm", "out"),), TypeError),
        ((3,), (TypeError, SystemError)),
        ((("a" * 64, "", "t", "", 1),), ValueError),
        ((("a", "b" * 32, "t", "", 1),), ValueError),
        ((("a", "b", "t" * 32, "", 1),), ValueError),
        ((("a", "b", "t", "l" * 96, 1),), ValueError),
        ((("a", "b", "t", "", -1),), ValueError),
        ((("a", "b", "t", "", 32),), ValueError),
        ((("a", "b", "t", "", 1),) * 65, ValueError),
    ],
)
def test_signatures_that_are_none(operators: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        _aten.connect(library.library(), operators)  # type: ignore[arg-type]


def test_the_switch(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("off", "OFF", " 0 ", "no", "false"):
        monkeypatch.setenv(aten.VARIABLE, word)
        assert aten.is_off()
        assert use_of(client) is None
    for word in ("", "on", "1"):
        monkeypatch.setenv(aten.VARIABLE, word)
        assert not aten.is_off()
        assert use_of(client) is not None


def test_torch_is_not_loaded_to_find_out() -> None:
    source = """
import sys
from pjrt_bridge_cpu.aten import library
assert not library.is_at_hand()
assert library.library() is not None
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", source], check=True)
