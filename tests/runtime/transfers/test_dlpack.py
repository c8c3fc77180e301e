"""Buffers to other libraries through DLPack: classic and versioned capsules."""

import ctypes
import gc
import threading
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from pjrt_bridge.errors import DataError, UnsupportedDtype
from pjrt_bridge.runtime import Buffer, Client
from pjrt_bridge.runtime.transfers.dlpack import Imported
from tests.conftest import Census
from tests.fuzz.objects import BrokenArray, BrokenDLPack, Capsule
from tests.runtime.arrays import aligned

BASE = np.arange(24, dtype=np.float32).reshape(4, 6)

pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype = ctypes.c_void_p
pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
name_of = ctypes.pythonapi.PyCapsule_GetName
name_of.restype = ctypes.c_char_p
name_of.argtypes = [ctypes.py_object]
rename = ctypes.pythonapi.PyCapsule_SetName
rename.argtypes = [ctypes.py_object, ctypes.c_char_p]


@pytest.fixture
def buffer(client: Client) -> Iterator[Buffer]:
    with client.put(BASE, copy=True) as made:
        yield made


@pytest.mark.parametrize("consume", [np.from_dlpack, torch.from_dlpack])
def test_consumers_see_the_memory(no_leaks: Census, buffer: Buffer, consume: Any) -> None:
    found = consume(buffer)
    address = found.data_ptr() if isinstance(found, torch.Tensor) else found.ctypes.data
    assert address == buffer.address
    np.testing.assert_array_equal(np.asarray(found), BASE)


def test_the_device(buffer: Buffer) -> None:
    assert buffer.__dlpack_device__() == (1, 0)


@pytest.mark.parametrize(
    ("version", "name", "offset"),
    [(None, b"dltensor", 0), ((0, 8), b"dltensor", 0), ((1, 0), b"dltensor_versioned", 32)],
)
def test_the_capsule(
    no_leaks: Census, buffer: Buffer, version: tuple[int, int] | None, name: bytes, offset: int
) -> None:
    """The fields at the offsets of dlpack.h, read without help."""
    capsule = buffer.__dlpack__(max_version=version)
    assert name_of(capsule) == name
    pointer = pointer_of(capsule, name)
    assert pointer
    if offset:
        assert ctypes.c_uint32.from_address(pointer).value == 1
    tensor = pointer + offset
    assert ctypes.c_void_p.from_address(tensor).value == buffer.address
    assert tuple((ctypes.c_int32 * 3).from_address(tensor + 8)) == (1, 0, 2)
    assert bytes((ctypes.c_char * 4).from_address(tensor + 20)) == b"\x02\x20\x01\x00"
    shape = ctypes.POINTER(ctypes.c_int64).from_address(tensor + 24)
    strides = ctypes.POINTER(ctypes.c_int64).from_address(tensor + 32)
    assert (shape[:2], strides[:2]) == ([4, 6], [6, 1])
    assert ctypes.c_uint64.from_address(tensor + 40).value == 0


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_that_nobody_consumes(
    no_leaks: Census, buffer: Buffer, version: tuple[int, int] | None
) -> None:
    for _ in range(3):
        buffer.__dlpack__(max_version=version)


@pytest.mark.parametrize("offset", [56, 16])
def test_a_deleter_on_a_foreign_thread(no_leaks: Census, client: Client, offset: int) -> None:
    name = b"dltensor" if offset == 56 else b"dltensor_versioned"
    buffer = client.put(BASE, copy=True)
    capsule = buffer.__dlpack__(max_version=None if offset == 56 else (1, 0))
    pointer = pointer_of(capsule, name)
    assert pointer
    # As the standard demands of a consumer; the capsule does not copy the name.
    used = b"used_" + name
    rename(capsule, used)
    del capsule
    buffer.delete()
    gc.collect()
    address = ctypes.c_void_p.from_address(pointer if offset == 56 else pointer + 32).value
    assert address
    assert ctypes.c_float.from_address(address + 4).value == 1
    deleter = ctypes.c_void_p.from_address(pointer + offset).value
    assert deleter
    delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)
    thread = threading.Thread(target=delete, args=(pointer,))
    thread.start()
    thread.join()


def test_a_tensor_outlives_its_buffer(no_leaks: Census, client: Client) -> None:
    tensor = torch.from_dlpack(client.put(BASE, copy=True))
    gc.collect()
    client.put(BASE + 1, copy=True)
    np.testing.assert_array_equal(tensor.numpy(), BASE)
    part = tensor[1]
    del tensor
    np.testing.assert_array_equal(part.numpy(), BASE[1])


def test_a_copy(no_leaks: Census, buffer: Buffer) -> None:
    tensor = torch.utils.dlpack.from_dlpack(buffer.__dlpack__(copy=True))
    assert tensor.data_ptr() != buffer.address
    np.testing.assert_array_equal(tensor.numpy(), BASE)


def test_what_a_consumer_may_not_ask(buffer: Buffer) -> None:
    with pytest.raises(BufferError, match=r"on DLPack device \(1, 0\), not \(2, 0\)"):
        buffer.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="no streams"):
        buffer.__dlpack__(stream=1)
    for version in (3, "1", [1, 0], (1,), {}):
        with pytest.raises(BufferError, match=r"max_version: found .*, expected two numbers or N"):
            buffer.__dlpack__(max_version=version)  # type: ignore[arg-type]
    assert name_of(buffer.__dlpack__(dl_device=(1, 0), copy=False)) == b"dltensor"


def test_types_without_a_dlpack_form(no_leaks: Census, client: Client) -> None:
    packed = client.put(np.zeros(4, ml_dtypes.int4))
    for use in (packed.__dlpack_device__, packed.__dlpack__):
        with pytest.raises(BufferError, match=r"use numpy\.asarray"):
            use()


def test_there_and_back(no_leaks: Census, client: Client) -> None:
    data = aligned(BASE)
    buffer = client.put(torch.from_dlpack(client.put(data)))
    assert buffer.address == data.ctypes.data


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 1, 3)])
def test_shapes(no_leaks: Census, client: Client, shape: tuple[int, ...]) -> None:
    buffer = client.put(np.ones(shape, np.float64))
    for found in (torch.from_dlpack(buffer), torch.utils.dlpack.from_dlpack(buffer.__dlpack__())):
        assert found.shape == shape
        assert bool((found == 1).all())


class Raw:
    """A producer of one hand-made classic capsule."""

    def __init__(self, code: int, bits: int, lanes: int = 1, *, rank: int = 0) -> None:
        self.memory = (ctypes.c_double * 4)(1.5)
        self.managed = (ctypes.c_uint64 * 8)(
            ctypes.addressof(self.memory) - 8, 1, rank | (code | bits << 8 | lanes << 16) << 32
        )
        self.managed[5] = 8

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)


def test_offsets_and_missing_shapes(client: Client) -> None:
    """A 0-d array with NULL shape and strides, 8 bytes behind its data pointer."""
    source = Raw(2, 64)
    assert Imported(source).address == ctypes.addressof(source.memory)
    assert client.put(source).to_numpy() == 1.5


@pytest.mark.parametrize(("code", "bits", "lanes"), [(2, 32, 4), (3, 64, 1), (17, 4, 1), (0, 3, 1)])
def test_foreign_types(client: Client, code: int, bits: int, lanes: int) -> None:
    with pytest.raises(UnsupportedDtype, match=f"code {code}, {bits} bits, {lanes} lanes"):
        client.put(Raw(code, bits, lanes))


def test_a_newer_major_version(client: Client) -> None:
    buffer = client.put(BASE)

    class Newer:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, **options: Any) -> Any:
            capsule = buffer.__dlpack__(max_version=(1, 0))
            pointer = pointer_of(capsule, b"dltensor_versioned")
            assert pointer
            ctypes.c_uint32.from_address(pointer).value = 2
            return capsule

    with pytest.raises(ValueError, match="DLPack version 2, expected 1"):
        client.put(Newer())


def test_a_view_that_dies_while_an_exception_is_on_its_way(client: Client) -> None:
    """The consumer's deleter runs with an exception pending, which must survive it."""

    def fail() -> None:
        view = torch.from_dlpack(client.put(np.ones(16, np.float32)))
        assert view.sum() == 16
        int("no number")

    for _ in range(3):
        with pytest.raises(ValueError, match="no number"):
            fail()


def test_a_native_exception_survives_the_death_of_its_arguments(client: Client) -> None:
    # Here torch's own argument tuple holds the last reference while the error is raised in C.
    for _ in range(3):
        with pytest.raises(RuntimeError, match="shape"):
            torch.from_dlpack(client.put(np.ones(4, np.float32))).reshape(3)
        with pytest.raises(TypeError):
            max(torch.from_dlpack(client.put(np.ones(4, np.float32))), key=1)


@pytest.mark.parametrize(
    "capsule",
    [
        Capsule(shape=None, ndim=3),
        Capsule(ndim=-1),
        Capsule(ndim=1 << 20),
        Capsule(shape=[1 << 62, 4]),
        Capsule(shape=[1 << 62, 1 << 62, 0]),
        Capsule(data=0),
        Capsule(name=b"other"),
    ],
    ids=repr,
)
def test_capsules_that_plugins_die_of(client: Client, capsule: Capsule) -> None:
    with pytest.raises(DataError):
        client.put(BrokenDLPack((1, 0), capsule))


@pytest.mark.parametrize("error", [KeyError("k"), AttributeError("a"), ZeroDivisionError("z")])
def test_methods_that_raise_what_nobody_expects(client: Client, error: Exception) -> None:
    for broken in (BrokenDLPack(error, None), BrokenDLPack((), None), BrokenArray(error)):
        with pytest.raises(DataError):
            client.put(broken)


def test_tensors_without_elements_of_their_own(client: Client) -> None:
    """An offset into a storage that does not exist is no null pointer."""
    base = torch.arange(24.0).reshape(6, 4)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(base)
    functional = torch._to_functional_tensor(base)
    for tensor in (fake, functional, TwoTensor(base, base)):
        for values in (tensor, tensor[3:]):
            with pytest.raises(DataError, match=r"not in its own memory|cannot be shared"):
                client.put(values)
    with client.put(torch.nn.Parameter(base).detach()[3:]) as made:
        np.testing.assert_array_equal(np.asarray(made), base[3:].numpy())
