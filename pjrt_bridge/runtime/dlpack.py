"""The DLPack exchange protocol, both ways, classic and versioned (dlpack.h 1.1).

Exporting hands out a capsule over memory that a `Pin` keeps alive; importing reads a capsule of
another library. Consumers free capsules on any thread, so the deleter only drops references.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import DataError, UnsupportedDtype

CPU = 1
"""kDLCPU, the DLDeviceType of host memory."""

VERSION = (1, 1)
"""DLPack version that the versioned capsules state."""

_CLASSIC = b"dltensor"
_VERSIONED = b"dltensor_versioned"


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [
        ("tensor", _Tensor),
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
        ("tensor", _Tensor),
    ]


_python = ctypes.PyDLL(None)
_new_capsule = _python.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_is_valid = _python.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_get_pointer = _python.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]

_exports: dict[int, tuple[object, ...]] = {}
_keys = itertools.count(1)


# Defaults bind what the callbacks need: module globals may be gone when the last tensor dies.
def _drop(address: int, managed: Any, exports: dict[int, tuple[object, ...]] = _exports) -> None:
    exports.pop(managed.from_address(address).manager_ctx, None)


def _delete(address: int, drop: Any = _drop, managed: Any = _Managed) -> None:
    drop(address, managed)


def _delete_versioned(address: int, drop: Any = _drop, managed: Any = _ManagedVersioned) -> None:
    drop(address, managed)


def _destroy_capsule(
    capsule: int,
    forms: Any = ((_CLASSIC, _delete), (_VERSIONED, _delete_versioned)),
    is_valid: Any = _is_valid,
    get_pointer: Any = _get_pointer,
) -> None:
    # A consumer renames the capsule; one that still has its name was never consumed.
    for name, delete in forms:
        if is_valid(capsule, name):
            delete(get_pointer(capsule, name))


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_DELETER_VERSIONED = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete_versioned)
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy_capsule)
# Immortal: tensors that outlive this module at exit still hold these function pointers.
for _callback in (_DELETER, _DELETER_VERSIONED, _DESTRUCTOR):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))


def export(
    address: int,
    dtype: DType,
    shape: Sequence[int],
    strides: Sequence[int],
    device: tuple[int, int],
    owner: object,
    *,
    versioned: bool,
) -> Any:
    """A capsule over memory that `owner` keeps alive.

    Args:
        address: of the first element.
        dtype: element type.
        shape: elements per dimension.
        strides: in elements.
        device: (DLDeviceType, device id).
        owner: dropped when the consumer is done, on any thread.
        versioned: a DLManagedTensorVersioned; else the classic form.

    Raises:
        UnsupportedDtype: DLPack does not have the type in this representation.
    """
    if dtype.dlpack is None:
        raise UnsupportedDtype(f"{dtype} has no DLPack form; use numpy.asarray(buffer)")
    rank = len(shape)
    dims = (ctypes.c_int64 * rank)(*shape)
    steps = (ctypes.c_int64 * rank)(*strides)
    managed = _ManagedVersioned() if versioned else _Managed()
    tensor = managed.tensor
    tensor.data = address
    tensor.device = _Device(*device)
    tensor.ndim = rank
    tensor.dtype = _DataType(*dtype.dlpack, 1)
    tensor.shape = dims
    tensor.strides = steps
    key = next(_keys)
    managed.manager_ctx = key
    if isinstance(managed, _ManagedVersioned):
        managed.major, managed.minor = VERSION
    deleter = _DELETER_VERSIONED if versioned else _DELETER
    managed.deleter = ctypes.cast(deleter, ctypes.c_void_p).value
    _exports[key] = (managed, dims, steps, owner)
    name = _VERSIONED if versioned else _CLASSIC
    return _new_capsule(
        ctypes.addressof(managed), name, ctypes.cast(_DESTRUCTOR, ctypes.c_void_p).value
    )


class Imported:
    """An array that came through DLPack.

    Attributes:
        address: of the first element.
        dtype: element type.
        shape: elements per dimension.
        byte_strides: None when the elements lie in row-major order without gaps.
        owner: keeps the memory alive.
    """

    __slots__ = ("address", "byte_strides", "dtype", "owner", "shape")

    def __init__(self, source: Any) -> None:
        name = type(source).__name__
        try:
            device_type = int(source.__dlpack_device__()[0])
            capsule = _capsule(source) if device_type == CPU else None
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise DataError(f"a {name} cannot be shared: {error}") from error
        if capsule is None:
            raise DataError(
                f"found an array on DLPack device type {device_type}, expected host memory "
                f"({CPU}); copy it to the host first"
            )
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
        tensor = managed.tensor
        rank = tensor.ndim
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


def _capsule(source: Any) -> Any:
    try:
        return source.__dlpack__(max_version=VERSION)
    except TypeError:
        return source.__dlpack__()


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
