"""Host data of every kind into buffers: what is shared, what is copied, what is refused."""

import array
import ctypes
import gc
import re
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from pjrt_bridge.errors import DataError, ResourceExhausted, UnsupportedDtype
from pjrt_bridge.runtime import Client
from pjrt_bridge.runtime.transfers.host import HostArray, describe
from tests.conftest import Census
from tests.runtime.arrays import aligned, misaligned


def _named(value: object) -> str:
    """A name that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:40]


BASE = np.arange(24, dtype=np.float32).reshape(4, 6)


def address(data: np.ndarray[Any, Any]) -> int:
    return int(data.ctypes.data)


def test_aligned_arrays_are_shared(client: Client) -> None:
    data = aligned(BASE)
    buffer = client.put(data)
    assert buffer.address == address(data)
    assert client.put(data, copy=False).address == address(data)
    assert (buffer.shape, buffer.dtype.name) == ((4, 6), "float32")


def test_other_arrays_are_copied(client: Client) -> None:
    data = misaligned(BASE)
    buffer = client.put(data)
    assert buffer.address != address(data)
    data[...] = 0
    np.testing.assert_array_equal(buffer.to_numpy(), BASE)
    with pytest.raises(DataError, match=r"cannot be shared.*64-byte alignment"):
        client.put(data, copy=False)


def test_copies_on_demand(client: Client) -> None:
    data = aligned(BASE)
    buffer = client.put(data, copy=True)
    data[...] = 0
    np.testing.assert_array_equal(buffer.to_numpy(), BASE)


VIEWS = {
    "transposed": lambda a: a.T,
    "columns": lambda a: a[:, 1:4],
    "every other row": lambda a: a[::2],
    "reversed": lambda a: a[::-1, ::-1],
    "one column": lambda a: a[:, 2],
    "broadcast": lambda a: np.broadcast_to(a[:, None], (4, 3, 6)),
    "zero strides": lambda a: np.broadcast_to(a[1, 1], (2, 3)),
    "fortran": np.asfortranarray,
    "empty": lambda a: a[:0],
    "empty columns": lambda a: a[:, :0].T,
    "scalar": lambda a: a[3, 5],
    "0-d": lambda a: a[3, 5].reshape(()),
    "size one, odd strides": lambda a: a[:1, ::5],
    "rank 8": lambda a: a.reshape(1, 2, 1, 2, 1, 3, 2, 1),
}


@pytest.mark.parametrize("view", VIEWS)
def test_arrays_of_every_form(client: Client, view: str) -> None:
    data = VIEWS[view](aligned(BASE))
    found = client.put(data).to_numpy()
    assert found.shape == data.shape
    np.testing.assert_array_equal(found, data)


TENSORS = {
    "transposed": lambda t: t.t(),
    "columns": lambda t: t[:, 1:4],
    "every other row": lambda t: t[::2],
    "one column": lambda t: t[:, 2],
    "expanded": lambda t: t[:, None].expand(4, 3, 6),
    "zero strides": lambda t: t[1, 1].expand(2, 3),
    "empty": lambda t: t[:0],
    "empty columns": lambda t: t[:, :0].t(),
    "0-d": lambda t: t[3, 5],
    "overlapping": lambda t: t.as_strided((3, 4), (1, 2)),
    "offset": lambda t: t.view(-1)[7:],
}


@pytest.mark.parametrize("view", TENSORS)
def test_tensors_of_every_form(client: Client, view: str) -> None:
    tensor = TENSORS[view](torch.from_numpy(aligned(BASE)))
    np.testing.assert_array_equal(client.put(tensor).to_numpy(), tensor.numpy())


def test_tensors_are_shared(client: Client) -> None:
    tensor = torch.arange(6.0)
    assert tensor.data_ptr() % 64 == 0
    buffer = client.put(tensor)
    assert buffer.address == tensor.data_ptr()
    assert client.put(tensor[1:]).address != tensor[1:].data_ptr()


@pytest.mark.parametrize(
    ("data", "dtype", "expected"),
    [
        (3, "int64", 3),
        (2.5, "float64", 2.5),
        (True, "bool", True),
        (1j, "complex128", 1j),
        (np.float32(7), "float32", 7),
        ([[1, 2], [3, 4]], "int64", [[1, 2], [3, 4]]),
        ((1, 2.5), "float64", [1, 2.5]),
        ([], "float64", []),
        (range(3), "int64", [0, 1, 2]),
        (memoryview(b"abc"), "uint8", [97, 98, 99]),
        (bytearray(b"ab"), "uint8", [97, 98]),
        (array.array("d", [1, 2]), "float64", [1, 2]),
        ((ctypes.c_int32 * 2)(5, 6), "int32", [5, 6]),
        ([np.float32(1), np.float32(2)], "float32", [1, 2]),
    ],
    ids=_named,
)
def test_other_data(client: Client, data: Any, dtype: str, expected: Any) -> None:
    buffer = client.put(data)
    assert buffer.dtype.name == dtype
    assert buffer.to_numpy().tolist() == expected


def test_an_object_with_an_array_method(client: Client) -> None:
    class Wrapped:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
            return BASE

    np.testing.assert_array_equal(client.put(Wrapped()).to_numpy(), BASE)


class Lender:
    """An array that speaks DLPack only, and in the old way if told so."""

    def __init__(self, data: np.ndarray[Any, Any], *, old: bool) -> None:
        self.data = data
        self.old = old

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        if self.old and options:
            raise TypeError("__dlpack__() takes no keyword arguments")
        return self.data.__dlpack__(**options)


@pytest.mark.parametrize("old", [True, False])
def test_anything_with_dlpack(no_leaks: Census, client: Client, old: bool) -> None:
    data = aligned(BASE)
    buffer = client.put(Lender(data, old=old))
    assert buffer.address == address(data)
    alive = weakref.ref(data.base)
    del data
    gc.collect()
    np.testing.assert_array_equal(buffer.to_numpy(), BASE)
    assert alive() is not None
    del buffer
    no_leaks.check()
    assert alive() is None


def test_shared_memory_is_returned_when_the_plugin_is_done(
    no_leaks: Census, client: Client
) -> None:
    data = aligned(BASE)
    alive = weakref.ref(data.base)
    buffer = client.put(data)
    view = np.asarray(buffer)
    del data
    buffer.delete()
    np.testing.assert_array_equal(view, BASE)
    assert alive() is not None
    del view
    no_leaks.check()
    assert alive() is None


def test_read_only_arrays(client: Client) -> None:
    data = aligned(BASE)
    data.flags.writeable = False
    assert client.put(data).address == address(data)
    np.testing.assert_array_equal(client.put(data[::2]).to_numpy(), BASE[::2])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "expected an array or a number"),
        ("text", "<U4"),
        (b"bytes", "S5"),
        (object(), "expected an array or a number"),
        ({}, "expected an array or a number"),
        (2**70, "expected an array or a number"),
        (np.zeros(2, "M8[s]"), "datetime64"),
        (np.zeros(2, [("a", "f4")]), "has no PJRT element type"),
        (np.zeros(2, np.longdouble), "has no PJRT element type"),
        (np.zeros(2, ">f4"), "byte order"),
    ],
    ids=_named,
)
def test_elements_that_no_plugin_has(client: Client, data: Any, message: str) -> None:
    with pytest.raises(UnsupportedDtype, match=message):
        client.put(data)


def conjugated_part() -> torch.Tensor:
    return torch.ones(3, dtype=torch.complex64).conj().imag


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [[1, 2], [3]], "a list is no array"),
        (lambda: torch.ones(3, requires_grad=True), "require gradient"),
        (lambda: torch.ones(3, dtype=torch.complex64).conj(), "conjugate"),
        (conjugated_part, "resolve_neg"),
        (lambda: torch.ones(3).to_sparse(), "torch.strided"),
        (lambda: torch.ones(3, device="meta"), "meta"),
        (lambda: Lender(np.zeros(3, "M8[s]"), old=False), "a Lender cannot be shared"),
    ],
)
def test_what_is_no_host_array(client: Client, make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        client.put(make())


class Elsewhere:
    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("memory of another device must not be asked for")


class Liar(Elsewhere):
    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        return "no capsule"


def test_arrays_of_other_devices(client: Client) -> None:
    with pytest.raises(DataError, match="DLPack device type 2, expected host memory"):
        client.put(Elsewhere())
    with pytest.raises(DataError, match="returned no DLPack capsule"):
        client.put(Liar())


def test_more_than_there_is_memory(client: Client) -> None:
    with pytest.raises(ResourceExhausted):
        client.put(np.broadcast_to(np.float32(0), (1 << 20, 1 << 20)))


def test_the_second_device(pair: Client) -> None:
    for data in (aligned(BASE), misaligned(BASE)):
        buffer = pair.put(data, pair.devices[1])
        assert buffer.device is pair.devices[1]
        assert buffer.memory is pair.devices[1].default_memory
        np.testing.assert_array_equal(buffer.to_numpy(), BASE)


def test_every_memory_space(pair: Client) -> None:
    for device in pair.devices:
        for memory in device.memories:
            for place in (None, device):
                buffer = pair.put(misaligned(BASE), place, memory=memory)
                assert buffer.device is device
                assert buffer.memory is memory
                np.testing.assert_array_equal(buffer.to_numpy(), BASE)


def test_places_of_others(client: Client, pair: Client) -> None:
    with pytest.raises(DataError, match="Device 1 'cpu'> is no device of <Client"):
        client.put(BASE, pair.devices[1])
    with pytest.raises(DataError, match="is no memory space of"):
        client.put(BASE, memory=pair.memories[0])
    with pytest.raises(DataError, match="out of reach of <Device 0"):
        pair.put(BASE, pair.devices[0], memory=pair.devices[1].memories[1])
    for place in (0, "cpu", pair.memories[0]):
        with pytest.raises(DataError, match="is no device of"):
            pair.put(BASE, place)  # type: ignore[arg-type]


def test_a_buffer_goes_through(client: Client, pair: Client) -> None:
    buffer = pair.put(BASE)
    first, second = pair.devices
    assert pair.put(buffer) is buffer
    assert pair.put(buffer, first, copy=False) is buffer
    assert pair.put(buffer, memory=first.default_memory) is buffer
    for moved in (
        pair.put(buffer, second),
        pair.put(buffer, copy=True),
        pair.put(buffer, memory=first.memories[1]),
    ):
        assert moved is not buffer
        np.testing.assert_array_equal(moved.to_numpy(), BASE)
    assert pair.put(buffer, second).device is second
    assert pair.put(buffer, memory=first.memories[1]).memory is first.memories[1]
    with pytest.raises(DataError, match="copy=False forbids"):
        pair.put(buffer, second, copy=False)
    with pytest.raises(DataError, match="belongs to another client"):
        client.put(buffer)


def test_described_memory(client: Client) -> None:
    data = aligned(BASE)
    host = describe(data)
    assert client.put_host(host).address == address(data)
    empty = HostArray(0, host.dtype, (0, 3), None, None)
    assert client.put_host(empty).to_numpy().shape == (0, 3)
