"""What the storage of a resident tensor holds: a buffer, which views share and writes replace."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import DeviceError
from pjrt_bridge.runtime import Buffer
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.transfers.layout import Layout
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.compat import third_party_device
from pjrt_bridge.torch_interop.device.naming import NAME
from pjrt_bridge.torch_interop.device.zeros import zeros
from pjrt_bridge.torch_interop.tensors import torch_dtype


class Pending(Protocol):
    """Elements that were recorded and not computed (`recording.py`)."""

    @property
    def type(self) -> TensorType:
        """Their shape and element type."""

    def compute(self) -> Buffer:
        """Compute them."""


class Contents:
    """The elements in a storage, as a row-major array on the device.

    Args:
        type: shape and element type.
        index: of the device.
        elements: a buffer, or what was recorded to give one; None where none were written: the
            first reader gets zeros.
    """

    __slots__ = ("__weakref__", "_elements", "dtype", "index", "shape", "type")

    def __init__(self, type: TensorType, index: int, elements: Buffer | Pending | None) -> None:
        self.type = type
        self.shape = type.shape
        self.dtype = torch_dtype(type.dtype)
        self.index = index
        self._elements = elements

    @property
    def elements(self) -> Buffer | Pending:
        """The elements, which may not be computed."""
        found = self._elements
        if found is None:
            found = self._elements = zeros(self.type, self.index)
        return found

    @property
    def buffer(self) -> Buffer:
        """The elements; those that were recorded are computed now."""
        found = self.elements
        if not isinstance(found, Buffer):
            found = self._elements = found.compute()
        return found

    @property
    def is_written(self) -> bool:
        """Whether there are elements."""
        return self._elements is not None

    def clear(self, type: TensorType) -> None:
        """Hold no elements, in an array of another form."""
        self._elements = None
        self.type, self.shape, self.dtype = type, type.shape, torch_dtype(type.dtype)

    def replace(self, elements: Buffer | Pending) -> None:
        """Hold other elements, in as many bytes."""
        self._elements = elements
        type = elements.type
        if type is not self.type:
            self.type = type
            self.shape = type.shape
            self.dtype = torch_dtype(type.dtype)


class Geometry(NamedTuple):
    """Where the elements of a tensor are among those of its storage."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


_by_address: weakref.WeakValueDictionary[int, Contents] = weakref.WeakValueDictionary()
_recent: deque[weakref.ref[Buffer]] = deque(maxlen=64)


def started(buffer: Buffer) -> None:
    """Note a result that may not be there yet."""
    _recent.append(weakref.ref(buffer))


def wait_for_all() -> None:
    """Wait until the last programs that were started are over.

    Raises:
        PjrtError: one of them failed.
    """
    for reference in tuple(_recent):
        buffer = reference()
        if buffer is not None:
            buffer.block_until_ready()


def is_resident(value: Any) -> bool:
    """Whether a value is a tensor on the device."""
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def contents_of(tensor: torch.Tensor) -> Contents:
    """What the storage of a resident tensor holds.

    Raises:
        DeviceError: a storage that the bridge did not make.
    """
    storage = tensor.untyped_storage()
    try:
        found: Contents = storage.pjrt_contents  # type: ignore[attr-defined]
    except AttributeError:
        # Torch makes further storages over the address of one, for files say.
        known = _by_address.get(storage.data_ptr()) if storage.nbytes() else None
        if known is not None:
            return known
        if storage.nbytes():
            raise DeviceError(
                f"a tensor of shape {tuple(tensor.shape)} on device {tensor.device} has a storage "
                "that was not made by pjrt_bridge; make it on the host and use .to()"
            ) from None
        index = tensor.device.index or 0
        found = Contents(TensorType((0,), dtypes.from_torch(tensor.dtype)), index, None)
        storage.pjrt_contents = found  # type: ignore[attr-defined]
    return found


def geometry_of(tensor: torch.Tensor, contents: Contents) -> Geometry | None:
    """Where the elements of a tensor are in its storage; None where it is all of it, in order."""
    shape = tuple(tensor.shape)
    dtype = tensor.dtype
    if (
        shape == contents.shape
        and dtype is contents.dtype
        and not tensor.storage_offset()
        and tensor.is_contiguous()
    ):
        return None
    return Geometry(dtype, shape, tensor.stride(), int(tensor.storage_offset()))


def resident_tensor(elements: Buffer | Pending, spec: ValueSpec, index: int) -> torch.Tensor:
    """A tensor of a buffer's elements, with the strides of a spec, in a storage of its own."""
    made = third_party_device.tensor_without_memory(
        spec.type.shape, spec.strides, torch_dtype(spec.type.dtype), index
    )
    if isinstance(elements, Buffer):
        started(elements)
    return _holding(made, Contents(elements.type, index, elements))


def empty(
    shape: Sequence[int], dtype: torch.dtype, index: int, strides: Sequence[int] | None = None
) -> torch.Tensor:
    """A tensor that nothing was written into yet."""
    sizes = tuple(map(int, shape))
    row_major = Layout.default(len(sizes)).strides(sizes)
    steps = row_major if strides is None else tuple(map(int, strides))
    made = third_party_device.tensor_without_memory(sizes, steps, dtype, index)
    element = dtypes.from_torch(dtype)
    type = TensorType(sizes, element) if steps == row_major else _memory(made, element)
    return _holding(made, Contents(type, index, None))


def _holding(tensor: torch.Tensor, contents: Contents) -> torch.Tensor:
    storage = tensor.untyped_storage()
    storage.pjrt_contents = contents  # type: ignore[attr-defined]
    _by_address[storage.data_ptr()] = contents
    return tensor


def _memory(tensor: torch.Tensor, dtype: DType) -> TensorType:
    """The array in the storage of a tensor whose strides are not row-major."""
    shape, strides = tuple(tensor.shape), tensor.stride()
    found = ValueSpec.argument(TensorType(shape, dtype), strides).memory
    elements = tensor.untyped_storage().nbytes() // dtype.itemsize
    return found if found.size == elements else TensorType((elements,), dtype)
