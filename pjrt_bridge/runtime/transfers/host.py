"""Host arrays of every kind, described in one way for the transfer to a device."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import DataError, UnsupportedDtype
from pjrt_bridge.runtime.transfers.apart import lie_apart
from pjrt_bridge.runtime.transfers.dlpack import Imported, is_row_major, words
from pjrt_bridge.wrong_arguments import described

ALIGNMENT = 64
"""Bytes to which host memory must be aligned for a plugin to use it in place (XLA's minimum)."""

_NOTHING = ctypes.create_string_buffer(ALIGNMENT)
NOWHERE = ctypes.addressof(_NOTHING)
"""Address of an array without elements: plugins and DLPack consumers take NULL for an error."""


@dataclass(slots=True)
class HostArray:
    """Elements in host memory.

    Attributes:
        address: of the first element; 0 is allowed where there are no elements.
        dtype: element type.
        shape: elements per dimension.
        byte_strides: None when the elements lie in row-major order without gaps.
        owner: keeps the memory alive.

    Raises:
        DataError: elements at address 0, a negative size, more bytes than 63 bits count, or strides
            of another rank; plugins die of these.
    """

    address: int
    dtype: DType
    shape: tuple[int, ...]
    byte_strides: tuple[int, ...] | None
    owner: object

    def __post_init__(self) -> None:
        strides = self.byte_strides
        if strides is not None and len(strides) != len(self.shape):
            raise DataError(f"found {len(strides)} strides, expected {len(self.shape)}")
        if min(self.shape, default=1) < 0 or not (self.address or 0 in self.shape):
            raise DataError(f"no elements of shape {self.shape} at address {self.address:#x}")
        # Sizes beside a zero count: plugins and NumPy multiply them all.
        if math.prod(size for size in self.shape if size) * self.dtype.numpy.itemsize >= 1 << 63:
            raise DataError(f"an array of shape {self.shape} is larger than any memory")

    @property
    def shareable(self) -> bool:
        """Whether a plugin can use the memory in place: aligned, dense, not packed, not empty."""
        return (
            self.byte_strides is None
            and self.address % ALIGNMENT == 0
            and self.dtype.bits >= 8
            and 0 not in self.shape
        )

    def words(self, *, writable: bool = False) -> np.ndarray[Any, Any]:
        """The elements, over the same memory, as words of NumPy that are as wide.

        With `writable` the array can be exported as a capsule of the classic kind, which cannot
        say that it may not be written.
        """
        return np.asarray(_ArrayInterface(self, writable=writable))

    def part(self, indices: tuple[slice, ...]) -> HostArray:
        """A part of the array, over the same memory; packed elements that lie apart are copied."""
        # Of an array without dimensions NumPy would give the number, in other memory.
        found = self.words()[indices] if indices else self.words()
        if self.dtype.bits < 8 and not found.flags.c_contiguous:
            found = np.ascontiguousarray(found)
        strides = None if found.flags.c_contiguous else found.strides
        address = int(found.__array_interface__["data"][0])
        return HostArray(address, self.dtype, found.shape, strides, (self.owner, found))

    def copied(self) -> HostArray:
        """The same elements in memory of their own, row-major."""
        return self._over(self.words().copy())

    def _over(self, words: np.ndarray[Any, Any]) -> HostArray:
        """Elements of the same type in row-major memory of NumPy's."""
        address = int(words.__array_interface__["data"][0])
        return HostArray(address, self.dtype, words.shape, None, words)

    def in_order(self, minor_to_major: tuple[int, ...]) -> HostArray:
        """The elements as a row-major array over the dimensions from slowest to fastest varying.

        It is over the same memory if the elements lie in this order, and a copy if not.
        """
        slowest_first = tuple(reversed(minor_to_major))
        array = self.words().transpose(slowest_first)
        steps = [stride // array.itemsize for stride in array.strides]
        if is_row_major(array.shape, steps) and all(
            stride % array.itemsize == 0 for stride in array.strides
        ):
            return HostArray(self.address, self.dtype, array.shape, None, self.owner)
        return self._over(np.ascontiguousarray(array))


class _ArrayInterface:
    """An object over memory that NumPy views as an array."""

    def __init__(self, host: HostArray, *, writable: bool) -> None:
        self.owner = host.owner
        self.__array_interface__ = {
            "version": 3,
            "shape": host.shape,
            "typestr": words(host.dtype).str,
            "data": (host.address or NOWHERE, not writable),
            "strides": host.byte_strides,
        }


def describe(data: Any) -> HostArray:
    """Describe an array: NumPy, DLPack, the buffer protocol or `__array__`, or a number.

    Nested lists and numbers become what `numpy.asarray` makes of them.

    Raises:
        UnsupportedDtype: an element type that PJRT does not have.
        DataError: not an array, not in host memory, or its owner refuses to share it.
    """
    if isinstance(data, np.ndarray):
        return _from_numpy(data)
    if hasattr(data, "__dlpack__") and hasattr(data, "__dlpack_device__"):
        found = Imported(data)
        return HostArray(found.address, found.dtype, found.shape, found.byte_strides, found.owner)
    try:
        array = np.asarray(data)
    # Whatever goes wrong in the methods of another library.
    except Exception as error:
        raise DataError(f"a {type(data).__name__} is no array: {error}") from error
    if array.dtype.hasobject:
        raise UnsupportedDtype(f"found {described(data)}, expected an array or a number")
    return _from_numpy(array)


def overwrite(data: Any, values: np.ndarray[Any, Any]) -> None:
    """Give an array, of NumPy or through DLPack, new elements in its own memory.

    Args:
        data: the array.
        values: of its shape; converted where its element type is another.

    Raises:
        DataError: not an array, not in host memory, read-only, or several elements
            are in the same memory, as they are in an expanded tensor and in windows.
        ValueError: another shape.
    """
    if isinstance(data, np.ndarray):
        if not data.flags.writeable:
            raise DataError("a NumPy array that is read-only")
        _check_apart(data.shape, data.strides)
        data[...] = values
        return
    if not (hasattr(data, "__dlpack__") and hasattr(data, "__dlpack_device__")):
        raise DataError(f"a {type(data).__name__}, expected an array of NumPy or with DLPack")
    found = Imported(data)
    if found.read_only:
        raise DataError(f"a {type(data).__name__} that is read-only")
    host = HostArray(found.address, found.dtype, found.shape, found.byte_strides, found.owner)
    _check_apart(host.shape, host.byte_strides)
    converted = np.ascontiguousarray(values, dtype=host.dtype.numpy)
    host.words(writable=True)[...] = converted.view(words(host.dtype)).reshape(values.shape)


def _check_apart(shape: Sequence[int], strides: Sequence[int] | None) -> None:
    if strides is not None and not lie_apart(shape, strides):
        raise DataError(
            "an array of which several elements are in the same memory; write to a copy"
        )


def _from_numpy(array: np.ndarray[Any, Any]) -> HostArray:
    dtype = dtypes.from_numpy(array.dtype)
    # PJRT packs sub-byte elements from a dense array; strided packing is left to NumPy.
    if dtype.bits < 8 and not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    strides = None if array.flags.c_contiguous else array.strides
    address = int(array.__array_interface__["data"][0])
    return HostArray(address, dtype, array.shape, strides, array)
