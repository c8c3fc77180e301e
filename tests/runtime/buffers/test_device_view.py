"""Arrays in device memory; here the host is taken for the device, as no GPU is needed for that."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pjrt_bridge.abi.extension_structs import by_name
from pjrt_bridge.errors import BufferUnavailable, DataError
from pjrt_bridge.runtime import Buffer, Client, Plugin, live_handles
from pjrt_bridge.runtime.buffers import device_view
from pjrt_bridge.runtime.transfers import device_dlpack
from tests import programs
from tests.extensions.offering import offering
from tests.runtime.arrays import aligned

HOST = (1, 0)


class Array:
    """An array of a framework that writes down for which streams it is asked."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values
        self.streams: list[object] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return HOST

    def __dlpack__(self, *, max_version: Any = None, stream: object = None) -> Any:
        self.streams.append(stream)
        return self.values.__dlpack__(max_version=max_version)


class Capsule:
    """What hands a capsule to a consumer."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return HOST

    def __dlpack__(self, **_: object) -> Any:
        return self.capsule


def take_for_device(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let host memory be that of the client's devices."""
    spec = replace(client.platform_spec, dlpack_device_type=HOST[0])
    monkeypatch.setitem(client.__dict__, "platform_spec", spec)


@pytest.fixture
def device(client: Client, pair: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    for each in (client, pair):
        take_for_device(each, monkeypatch)
    yield client
    live_handles()
    assert device_view.lent() == 0


def values() -> np.ndarray[Any, Any]:
    return aligned(np.arange(64, dtype=np.float32))


def test_an_array_is_used_where_it_lies(device: Client) -> None:
    array = values()
    with device.put(Array(array)) as buffer, device.compile(programs.ADD) as executable:
        assert buffer.address == array.__array_interface__["data"][0]
        (total,) = executable.execute([buffer, buffer])
        assert np.array_equal(total.to_numpy(), array + array)
        assert device_view.lent() == 1


def test_the_array_is_kept_as_long_as_the_plugin_needs_it(device: Client) -> None:
    buffer = device.put(Array(values()))
    assert np.array_equal(buffer.to_numpy(), np.arange(64))
    buffer.delete()


def test_a_copy_is_another_array(device: Client) -> None:
    array = values()
    with device.put(Array(array), copy=True) as buffer:
        assert buffer.address != array.__array_interface__["data"][0]
        assert np.array_equal(buffer.to_numpy(), array)


def test_what_cannot_be_shared(device: Client) -> None:
    for array in (values()[1:], values()[::2]):
        with pytest.raises(DataError, match=r"on GPU 0 cannot be shared: .* make it contiguous"):
            device.put(Array(array))


def test_another_device(device: Client, pair: Client) -> None:
    with pytest.raises(DataError, match=r"found an array on GPU 0, expected it on <Device 1"):
        pair.put(Array(values()), pair.devices[1])


def exported(buffer: Buffer, stream: object) -> np.ndarray[Any, Any]:
    capsule = device_dlpack.export(buffer, HOST, stream=stream, versioned=True)
    return np.from_dlpack(Capsule(capsule))


@pytest.mark.parametrize("stream", [None, 1, 2, 0x7000, -1])
def test_a_buffer_for_a_framework(device: Client, stream: int | None) -> None:
    with device.put(values()) as buffer:
        assert device_dlpack.place_of(buffer) == HOST
        seen = exported(buffer, stream)
        assert seen.__array_interface__["data"][0] == buffer.address
        assert np.array_equal(seen, np.arange(64))
    # The capsule keeps the memory.
    assert np.array_equal(seen, np.arange(64))


class Streams:
    """Streams whose work is over when the test says so."""

    def __init__(self) -> None:
        self.recorded: list[tuple[int, int]] = []
        self.over: set[object] = set()
        self.works = True

    def record(self, device: int, stream: int) -> object:
        if not self.works:
            raise DataError("no event")
        self.recorded.append((device, stream))
        return len(self.recorded)

    def follow(self, device: int, stream: int, leading: int) -> None:
        raise NotImplementedError

    def is_over(self, event: object) -> bool:
        return event in self.over


def test_memory_that_a_consumer_let_go_of_stays_until_its_stream_has_come_so_far(
    device: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams()
    spec = replace(device.platform_spec, stream_events=streams)
    monkeypatch.setitem(device.__dict__, "platform_spec", spec)
    before = live_handles().get("Buffer", 0)
    for _ in range(2):
        seen = exported(device.put(values()), 0x7000)
        assert np.array_equal(seen, np.arange(64))
        del seen
        gc.collect()
    assert streams.recorded == [(0, 0x7000)] * 2
    assert live_handles().get("Buffer", 0) == before + 2
    # The next capsule asks.
    streams.over = {1}
    seen = exported(device.put(values()), -1)
    assert live_handles().get("Buffer", 0) == before + 2
    del seen
    gc.collect()
    assert live_handles().get("Buffer", 0) == before + 1
    streams.over, streams.works = {1, 2}, False
    exported(device.put(values()), 1)
    gc.collect()
    assert live_handles().get("Buffer", 0) == before


@pytest.mark.parametrize("stream", [0, -2, "1", 1.5])
def test_streams_that_are_none(device: Client, stream: object) -> None:
    with device.put(values()) as buffer, pytest.raises(BufferError, match="for a stream"):
        exported(buffer, stream)


def test_a_buffer_that_is_gone(device: Client) -> None:
    buffer = device.put(values())
    buffer.delete()
    with pytest.raises(BufferUnavailable, match="was deleted"):
        exported(buffer, None)


def test_streams_are_ordered_by_the_plugin(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[tuple[int, int]] = []

    def get_stream(args: Any) -> None:
        args.stream = 0

    def wait_stream(args: Any) -> None:
        waited.append((args.stream, args.buffer))

    functions = {"get_stream": get_stream, "wait_stream": wait_stream}
    with offering(plugin, by_name("Stream"), functions) as client:
        take_for_device(client, monkeypatch)
        array = Array(values())
        with client.put(array) as buffer:
            # The plugin named no stream, so the producer is not asked to order anything.
            assert array.streams == [None]
            exported(buffer, None)
            exported(buffer, 0x7000)
            exported(buffer, -1)
            assert waited == [(1, buffer.handle.pointer), (0x7000, buffer.handle.pointer)]


def test_a_stream_that_the_plugin_names_is_the_producers_to_wait_on(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_stream(args: Any) -> None:
        args.stream = 0x7000

    seen: list[int] = []

    def view(_client: Client, *_rest: Any, stream: int, **_named: Any) -> Any:
        seen.append(stream)

    with offering(plugin, by_name("Stream"), {"get_stream": get_stream}) as client:
        take_for_device(client, monkeypatch)
        monkeypatch.setattr(device_view, "view", view)
        array = Array(values())
        device_view.put(client, array, None, copy=None)
        assert (array.streams, seen) == ([0x7000], [0x7000])
