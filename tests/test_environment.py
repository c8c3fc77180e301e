"""Environment variables of the bridge with values that nobody can mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import pjrt_bridge
from pjrt_bridge import environment
from pjrt_bridge.errors import VariableError
from pjrt_bridge.registry import brought, discovery, plugins
from pjrt_bridge.runtime.compile.compile_cache import compile_cache
from pjrt_bridge.torch_interop.resident.client.chosen import eager_mode
from pjrt_bridge_cpu import memory


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    discovery.refresh()
    yield
    discovery.refresh()


def kernels() -> object:
    return brought.kernels(pjrt_bridge.client("cpu"))


@pytest.mark.parametrize(
    ("name", "expected", "read"),
    [
        ("BACKGROUND", "expected off, 0, no or false, or on", plugins),
        ("TRIAL", "expected off, 0, no or false, or on", plugins),
        ("DISPATCH", "expected c or python", pjrt_bridge.client),
        ("CPU_BUILD", "expected one of xla-cpu-pjrt, ", pjrt_bridge.client),
        ("ATEN", "expected off, 0, no or false, or on", kernels),
        ("MALLOC", "expected off, 0, no or false, or on", kernels),
        ("EAGER", "expected async, fused or sync", eager_mode),
        ("CACHE_LIMIT", "expected a number of bytes such as 500M", compile_cache),
    ],
)
def test_a_value_that_nobody_can_mean_is_refused(
    name: str, expected: str, read: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.keep_freed.cache_clear()
    monkeypatch.setenv(f"PJRT_BRIDGE_{name}", " Banana ")
    if name == "CACHE_LIMIT":
        monkeypatch.setenv("PJRT_BRIDGE_CACHE", "somewhere")
    with pytest.raises(VariableError, match=f"PJRT_BRIDGE_{name}: found 'Banana', {expected}"):
        read()


@pytest.mark.parametrize("value", ["", "on", "1", "Yes", " true "])
def test_what_means_on(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_TRIAL", value)
    assert not environment.is_off("PJRT_BRIDGE_TRIAL")


def test_a_folder_may_have_any_name_but_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", "banana")
    assert not environment.names_off("PJRT_BRIDGE_CACHE")
    monkeypatch.setenv("PJRT_BRIDGE_CACHE", "OFF")
    assert environment.names_off("PJRT_BRIDGE_CACHE")
