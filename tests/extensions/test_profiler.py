"""Profiles of plugins that give their data in different ways."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from pjrt_bridge import registry, wire
from pjrt_bridge.abi.extension_structs import PROFILER_API
from pjrt_bridge.extensions import Profiler
from pjrt_bridge.extensions.profiler import _without_terminator
from pjrt_bridge.profiling import xspace
from pjrt_bridge.runtime import Client, Plugin
from pjrt_bridge_reference import pjrt_bridge_plugins
from tests import programs

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


@contextmanager
def collecting(profiler: Profiler, wrap: Callable[[Any, Any], int | None]) -> Iterator[None]:
    """Put a function before the plugin's own `collect_data`."""
    at = profiler._api + PROFILER_API.offset_of("collect_data")
    slot = ctypes.c_void_p.from_address(at)
    real, struct = slot.value, PROFILER_API.functions["collect_data"]
    assert real is not None
    assert struct is not None
    callback = _FUNCTION(lambda address: wrap(_FUNCTION(real), struct.ctype.from_address(address)))
    slot.value = ctypes.cast(callback, ctypes.c_void_p).value
    try:
        yield
    finally:
        slot.value = real


def recorded(client: Client, profiler: Profiler) -> bytes:
    ones = np.ones(64, np.float32)
    with client.compile(programs.ADD) as executable, profiler.session() as session:
        executable(ones, ones)[0].to_numpy()
    return session.data


@pytest.fixture(scope="module")
def reference() -> Plugin:
    return registry.load(pjrt_bridge_plugins())


def test_a_plugin_that_gives_memory_of_its_own(reference: Plugin) -> None:
    """XLA's do: with a zero byte more, and nothing is copied where memory is given."""
    kept: list[Any] = []

    def collect(real: Any, args: Any) -> int | None:
        if args.buffer:
            return None
        if error := real(ctypes.addressof(args)):
            return int(error)
        memory = ctypes.create_string_buffer(args.buffer_size_in_bytes + 1)
        kept.append(memory)
        args.buffer = ctypes.addressof(memory)
        if error := real(ctypes.addressof(args)):
            return int(error)
        args.buffer_size_in_bytes = len(memory)
        return None

    with Client(reference) as client:
        profiler = client.extension(Profiler)
        with collecting(profiler, collect):
            data = recorded(client, profiler)
        assert kept[0].raw == data + b"\0"
        (plane,) = xspace.decode(data)
        assert plane.name == "/device:reference"
        assert [item.name for item in plane.lines[0].spans] == ["add", "to host"]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        wire.message(1, b"abc"),
        wire.message(1, b"ab\0"),
        wire.varint(2, 0),
        wire.double(3, 0.0),
        wire.message(1, b""),
    ],
)
def test_a_zero_behind_a_message_is_told_from_one_within(message: bytes) -> None:
    assert _without_terminator(message) == message
    assert _without_terminator(message + b"\0") == message
