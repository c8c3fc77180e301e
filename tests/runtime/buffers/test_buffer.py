"""Buffers: what they say about themselves, reading, copying, deleting."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pjrt_bridge.errors import ArgumentError, BufferUnavailable, DataError, PluginIncompatible
from pjrt_bridge.runtime import Buffer, BufferState, Client, Event, Executable, Layout
from tests import programs
from tests.conftest import Census
from tests.runtime.arrays import aligned, misaligned

BASE = np.arange(24, dtype=np.float32).reshape(4, 6)


def test_what_a_buffer_says(client: Client) -> None:
    buffer = client.put(BASE)
    assert buffer.shape == (4, 6)
    assert buffer.dtype.name == "float32"
    assert buffer.device is client.devices[0]
    assert buffer.memory is client.devices[0].default_memory
    assert buffer.layout == Layout((1, 0))
    assert buffer.nbytes == 96
    assert buffer.state is BufferState.LIVE
    assert buffer.client is client
    assert repr(buffer) == "<Buffer f32[4,6] on device 0 (live)>"


def test_layouts_compare_by_value() -> None:
    tiled = Layout((1, 0), ((8, 128), (2, 1)))
    assert tiled == Layout((1, 0), ((8, 128), (2, 1)))
    assert tiled != Layout((1, 0))
    assert Layout((0,)) != (0,)
    assert len({tiled, Layout((1, 0)), Layout((1, 0))}) == 2
    assert repr(tiled) == "Layout({1,0:T(8,128)(2,1)})"
    assert Layout((0, 2, 1)).strides((2, 3, 4)) == (1, 8, 2)
    assert Layout(()).row_major


def test_the_copy_is_a_copy(client: Client) -> None:
    buffer = client.put(BASE)
    first = buffer.to_numpy()
    first[...] = 0
    np.testing.assert_array_equal(buffer.to_numpy(), BASE)


def test_the_array_is_a_view(client: Client) -> None:
    data = aligned(BASE)
    view = np.asarray(client.put(data))
    assert view.ctypes.data == data.ctypes.data
    assert not view.flags.writeable
    np.testing.assert_array_equal(view, BASE)


@pytest.mark.parametrize("copy", [None, True, False])
@pytest.mark.parametrize("dtype", [None, np.float32])
def test_copying_on_demand(client: Client, copy: bool | None, dtype: Any) -> None:
    buffer = client.put(BASE)
    array = np.array(buffer, dtype=dtype, copy=copy)
    np.testing.assert_array_equal(array, BASE)
    assert (array.ctypes.data == buffer.address) is not bool(copy)
    assert array.flags.writeable is bool(copy)


def test_another_dtype(client: Client) -> None:
    buffer = client.put(BASE)
    assert np.asarray(buffer, dtype=np.int64).dtype == np.int64
    np.testing.assert_array_equal(np.asarray(buffer, dtype=np.int64), BASE)
    with pytest.raises(ValueError, match="cannot be viewed as int64"):
        np.array(buffer, dtype=np.int64, copy=False)


def test_packed_elements_have_no_view(client: Client) -> None:
    buffer = client.put(np.arange(5).astype(ml_dtypes.int4))
    assert buffer.nbytes == 3
    assert np.asarray(buffer).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="not in host memory that NumPy can view"):
        np.array(buffer, copy=False)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0), (1, 1)])
def test_views_of_few_elements(client: Client, shape: tuple[int, ...]) -> None:
    buffer = client.put(np.ones(shape, np.int16))
    for array in (np.asarray(buffer), buffer.to_numpy(), np.from_dlpack(buffer)):
        assert array.shape == shape
        assert array.dtype == np.int16
        assert (array == 1).all()


def test_a_view_keeps_the_memory(no_leaks: Census, client: Client) -> None:
    buffer = client.put(misaligned(BASE))
    view = np.asarray(buffer)[1:, ::2]
    buffer.delete()
    assert buffer.state is BufferState.DELETED
    client.put(misaligned(BASE + 1))
    np.testing.assert_array_equal(view, BASE[1:, ::2])


def test_deleted(no_leaks: Census, client: Client) -> None:
    buffer = client.put(BASE)
    buffer.delete()
    buffer.delete()
    assert buffer.state is BufferState.DELETED
    assert "deleted" in repr(buffer)
    uses: list[Any] = [
        buffer.to_numpy,
        buffer.block_until_ready,
        buffer.ready,
        buffer.ready_event,
        buffer.__dlpack__,
        lambda: np.asarray(buffer),
        lambda: buffer.layout,
        lambda: buffer.memory,
        lambda: buffer.nbytes,
        lambda: buffer.address,
        lambda: buffer.copy_to(client.devices[0]),
        lambda: client.compile(programs.identity("tensor<4x6xf32>")).execute([buffer]),
        buffer.held().__enter__,
    ]
    for use in uses:
        with pytest.raises(BufferUnavailable, match=r"f32\[4,6\] on device 0 was deleted$"):
            use()
    assert (buffer.shape, buffer.dtype.name) == ((4, 6), "float32")


def test_a_with_block_deletes(client: Client) -> None:
    with client.put(BASE) as buffer:
        assert buffer.state is BufferState.LIVE
    assert buffer.state is BufferState.DELETED


def test_held_gives_the_pointer(no_leaks: Census, client: Client) -> None:
    buffer = client.put(BASE)
    with buffer.held() as pointer:
        buffer.delete()
        found = client.api.call("Buffer_IsDeleted", buffer=pointer)
        assert not found.is_deleted


def test_copies_to_every_place(pair: Client) -> None:
    buffer = pair.put(BASE)
    for device in pair.devices:
        copy = buffer.copy_to(device)
        assert copy.device is device
        assert copy.address != buffer.address
        np.testing.assert_array_equal(copy.to_numpy(), BASE)
        for memory in device.memories:
            there = copy.copy_to(memory)
            assert (there.device, there.memory) == (device, memory)
            np.testing.assert_array_equal(there.to_numpy(), BASE)


def test_copies_to_impossible_places(client: Client, pair: Client) -> None:
    buffer = client.put(BASE)
    with pytest.raises(DataError, match="is no device of"):
        buffer.copy_to(pair.devices[0])
    with pytest.raises(DataError, match="is no memory space of"):
        buffer.copy_to(pair.memories[0])
    with pytest.raises(DataError, match="found None, expected a device or a memory space"):
        buffer.copy_to(None)  # type: ignore[arg-type]


def test_a_wrapped_null_is_refused(no_leaks: Census, client: Client) -> None:
    with pytest.raises(PluginIncompatible, match="returned no Buffer"):
        Buffer.of_pointer(client, None, client.put(BASE).type, client.devices[0])


@pytest.mark.parametrize("pointer", ["x", 1.5, True, -8, 1 << 70, b"12345678"])
def test_what_is_no_address_is_not_taken_over(
    no_leaks: Census, client: Client, pointer: Any
) -> None:
    """It would be destroyed later, in a call that has nothing to do with it."""
    with client.put(np.ones(3)) as buffer:
        with pytest.raises(ArgumentError, match=r"pointer: found .*expected"):
            Buffer.of_pointer(client, pointer, buffer.type, buffer.device)
        with pytest.raises(ArgumentError, match=r"device: found .*expected a Device"):
            Buffer.of_pointer(client, None, buffer.type, pointer)
        assert np.array_equal(buffer, np.ones(3))


@pytest.mark.parametrize("name", [None, 1, b"x", object()])
def test_a_buffer_is_not_marked_by_what_is_no_text(client: Client, name: Any) -> None:
    buffer = client.put(np.ones(3))
    with pytest.raises(ArgumentError, match="to: found"):
        buffer.mark_donated(name)
    assert buffer.state is BufferState.LIVE
    assert np.array_equal(buffer, np.ones(3))


def test_a_handle_of_something_else_is_refused(client: Client) -> None:
    """Plugins end the process on objects of another kind."""
    executable = client.compile(programs.ADD)
    with client.put(np.ones(3)) as buffer:
        for make in (
            lambda: Executable(client, buffer.handle, executable.signature, "x", False),
            lambda: Event(buffer.handle),
            lambda: Buffer(client, client.handle, buffer.type, buffer.device),
        ):
            with pytest.raises(ArgumentError, match="handle: found"):
                make()
