"""The DLPack exchange protocol, both ways, classic and versioned (dlpack.h 1.1).

Exporting hands out a capsule over memory that an array keeps alive; importing reads a capsule of
another library.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import DataError, UnsupportedDtype

CPU = 1
"""kDLCPU, the DLDeviceType of host memory."""

VERSION = (1, 1)
"""DLPack version that the versioned capsules state."""

_CLASSIC = b"dltensor"
_MOST_DIMENSIONS = 64
_VERSIONED = b"dltensor_versioned"


class _DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [
        ("tensor", _DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_READ_ONLY = 1 << 0
"""DLPACK_FLAG_BITMASK_READ_ONLY."""

_python = ctypes.PyDLL(None)
_is_valid = _python.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_get_pointer = _python.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


def words(dtype: DType) -> np.dtype[Any]:
    """A type that NumPy exports, as wide as `dtype`."""
    wide = dtype.numpy.itemsize
    return np.dtype("complex128" if wide == 16 else f"u{wide}")


def export(
    memory: np.ndarray[Any, Any],
    dtype: DType,
    *,
    versioned: bool,
    device: tuple[int, int] = (CPU, 0),
) -> Any:
    """A capsule over memory that an array keeps alive.

    NumPy makes the capsule, because its deleter is C: consumers drop tensors on any thread and
    while an exception is on its way, which a deleter in Python would swallow.

    Args:
        memory: the elements as `words`.
        dtype: what they are.
        versioned: a DLManagedTensorVersioned; else the classic form.
        device: DLDeviceType and number of the device whose memory it is.

    Raises:
        UnsupportedDtype: DLPack does not have the type in this representation.
    """
    if dtype.dlpack is None:
        raise UnsupportedDtype(f"{dtype} has no DLPack form; use numpy.asarray(buffer)")
    capsule = memory.__dlpack__(max_version=VERSION) if versioned else memory.__dlpack__()
    name, managed = (_VERSIONED, _ManagedVersioned) if versioned else (_CLASSIC, _Managed)
    found: Any = managed.from_address(_get_pointer(id(capsule), name))
    found.tensor.dtype = _DLDataType(*dtype.dlpack, 1)
    found.tensor.device = _DLDevice(*device)
    return capsule


def is_version(value: object) -> bool:
    """Whether something is a version of DLPack: major and minor number."""
    return isinstance(value, tuple) and len(value) == 2 and all(type(n) is int for n in value)


class Imported:
    """An array that came through DLPack.

    Attributes:
        address: of the first element.
        dtype: element type.
        shape: elements per dimension.
        byte_strides: None when the elements lie in row-major order without gaps.
        owner: keeps the memory alive.
        read_only: it may not be written, or it does not say that it may.

    Args:
        source: the array.
        device_type: DLDeviceType where it has to be.
        stream: of the consumer, which the producer lets wait for the elements; None on the host.
    """

    __slots__ = ("address", "byte_strides", "dtype", "owner", "read_only", "shape")

    def __init__(self, source: Any, *, device_type: int = CPU, stream: int | None = None) -> None:
        name = type(source).__name__
        try:
            found = int(source.__dlpack_device__()[0])
            capsule = _capsule(source, stream) if found == device_type else None
        # Whatever goes wrong in the methods of another library.
        except Exception as error:
            raise DataError(f"a {name} cannot be shared: {error}") from error
        if capsule is None:
            raise DataError(
                f"found an array on DLPack device type {found}, expected "
                f"{'host memory' if device_type == CPU else 'device memory'} ({device_type}); "
                "copy it there first"
            )
        if not has_own_elements(source):
            raise DataError(f"a {name} whose elements are not in its own memory")
        # DLPack has no word for torch's lazy negation, and torch exports such tensors as they lie.
        if getattr(source, "is_neg", bool)():
            raise DataError(f"a {name} with the negative bit set; use its resolve_neg()")
        versioned = bool(_is_valid(id(capsule), _VERSIONED))
        if not versioned and not _is_valid(id(capsule), _CLASSIC):
            raise DataError(f"{name}.__dlpack__ returned no DLPack capsule")
        pointer = _get_pointer(id(capsule), _VERSIONED if versioned else _CLASSIC)
        managed: Any = (_ManagedVersioned if versioned else _Managed).from_address(pointer)
        if versioned and managed.major != VERSION[0]:
            raise DataError(f"found DLPack version {managed.major}, expected {VERSION[0]}")
        # A capsule of the classic kind cannot say so.
        self.read_only = not versioned or bool(managed.flags & _READ_ONLY)
        tensor = managed.tensor
        rank = tensor.ndim
        if not 0 <= rank <= _MOST_DIMENSIONS or (rank and not tensor.shape):
            raise DataError(f"{name}.__dlpack__ returned {rank} dimensions without sizes")
        kind = tensor.dtype
        self.dtype = dtypes.from_dlpack(kind.code, kind.bits, kind.lanes)
        self.shape = tuple(tensor.shape[:rank])
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.byte_strides = self._strides(tensor, rank)
        # The capsule is not consumed, so it frees the memory when it is dropped itself.
        self.owner = capsule

    def _strides(self, tensor: Any, rank: int) -> tuple[int, ...] | None:
        if not tensor.strides:
            return None
        found = tuple(tensor.strides[:rank])
        if is_row_major(self.shape, found):
            return None
        return tuple(stride * self.dtype.itemsize for stride in found)


def has_own_elements(source: Any) -> bool:
    """Whether the elements of an array are those that its memory holds, as far as torch says.

    Torch exports the storage of any tensor, also of FakeTensors, wrappers and functional tensors.
    """
    # Torch's own function, which does nothing, is no method of a class.
    if inspect.ismethod(getattr(type(source), "__torch_dispatch__", None)):
        return False
    storage = getattr(source, "untyped_storage", None)
    if storage is None or not source.numel():
        return True
    try:
        return bool(storage().data_ptr())
    # Layouts without storages, and storages without memory.
    except (RuntimeError, NotImplementedError):
        return False


def _capsule(source: Any, stream: int | None) -> Any:
    order = {} if stream is None else {"stream": stream}
    try:
        return source.__dlpack__(max_version=VERSION, **order)
    except TypeError:
        return source.__dlpack__(**order)


def is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether element strides describe row-major order without gaps."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 0:
            return True
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
