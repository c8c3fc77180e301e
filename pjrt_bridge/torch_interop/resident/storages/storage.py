"""Storages of resident tensors: each holds a buffer, which views share and writes replace.

An array that is divided over a mesh has a buffer on each device; its tensor is one of device 0.
"""

from __future__ import annotations

import struct
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import DeviceError, UnsupportedDtype
from pjrt_bridge.runtime import Buffer, ShardedBuffer, native
from pjrt_bridge.runtime.core.layout import Layout
from pjrt_bridge.runtime.dispatch import outputs
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer, placed
from pjrt_bridge.runtime.ownership.leases import offer_lease
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.compat.devices import third_party_device
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.resident.client.chosen import chosen
from pjrt_bridge.torch_interop.resident.storages.zeros import zeros
from pjrt_bridge.torch_interop.tensors import torch_dtype


class Pending(Protocol):
    """Elements that were recorded and not computed (`recording.py`)."""

    @property
    def type(self) -> TensorType:
        """Their shape and element type."""

    def compute(self) -> Buffer:
        """Compute them."""


class _ContentsAttributes:
    """The attributes of `Contents`, where the compiled module has none of them."""

    __slots__ = ("__weakref__", "dtype", "held", "index", "shape", "type")

    held: Any
    type: TensorType
    shape: tuple[int, ...]
    dtype: torch.dtype
    index: int


_LARGEST = 1 << 38
"""Bytes of a storage, whose address is none of memory."""

_in_c: Any = native.module
if TYPE_CHECKING:
    _Base = _ContentsAttributes
else:
    _Base = _ContentsAttributes if _in_c is None else _in_c.Resident


class Contents(_Base):
    """The elements in a storage, as a row-major array on the device.

    The compiled module reads and makes them, too (`resident.c`).

    Args:
        type: shape and element type.
        index: of the device.
        elements: a buffer, or what was recorded to give one; None where none were written: the
            first reader gets zeros.

    Attributes:
        held: the elements, as they were given, or a result of the compiled module.
        type: see above; equal types are one object.
        shape: of the type.
        dtype: of the type, torch's.
        index: see above.
    """

    __slots__ = ()

    def __init__(self, type: TensorType, index: int, elements: AnyBuffer | Pending | None) -> None:
        self._take(type)
        self.index = index
        self.held = elements
        if isinstance(elements, Buffer):
            offer_lease(elements.handle)

    def _take(self, type: TensorType) -> None:
        self.type, self.shape, self.dtype = _form(type)

    @property
    def elements(self) -> AnyBuffer | Pending:
        """The elements, which may not be computed."""
        found = self.held
        if found is None:
            self.replace(zeros(self.type, self.index))
        elif outputs.is_output(found):
            client, device = chosen(self.index)
            self.replace(outputs.buffer_of(found, client, self.type, device))
        return cast(AnyBuffer | Pending, self.held)

    @property
    def buffer(self) -> AnyBuffer:
        """The elements; those that were recorded are computed now."""
        found = self.elements
        if not isinstance(found, (Buffer, ShardedBuffer)):
            found = found.compute()
            self.replace(found)
        return found

    @property
    def is_written(self) -> bool:
        """Whether there are elements."""
        return self.held is not None

    def clear(self, type: TensorType) -> None:
        """Hold no elements, in an array of another form."""
        self.held = None
        self._take(type)

    @property
    def is_divided(self) -> bool:
        """Whether the elements are divided over a mesh."""
        return isinstance(self.held, ShardedBuffer)

    def assign(self, elements: AnyBuffer | Pending) -> None:
        """Hold other elements, divided as those before."""
        held = self.held
        if isinstance(held, ShardedBuffer) and elements.type == held.type:
            array = (
                elements if isinstance(elements, (Buffer, ShardedBuffer)) else elements.compute()
            )
            elements = placed(array, held.sharding)
        self.replace(elements)

    def replace(self, elements: AnyBuffer | Pending) -> None:
        """Hold other elements, in as many bytes."""
        if elements.type is not self.type:
            self._take(elements.type)
        self.held = elements
        if isinstance(elements, Buffer):
            # The compiled module keeps it by that.
            offer_lease(elements.handle)


_forms: dict[TensorType, tuple[TensorType, tuple[int, ...], torch.dtype]] = {}


def _form(type: TensorType) -> tuple[TensorType, tuple[int, ...], torch.dtype]:
    found = _forms.get(type)
    if found is None:
        found = _forms.setdefault(type, (type, type.shape, torch_dtype(type.dtype)))
    return found


form_of_array = _form
"""A type as all contents have it, with its shape and torch's element type."""


class Geometry(NamedTuple):
    """Where the elements of a tensor are among those of its storage."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


_exchange: Any = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
_by_address: weakref.WeakValueDictionary[int, Contents] = weakref.WeakValueDictionary()
"""Where the compiled module has no table of them."""

_recent: deque[weakref.ref[Any]] = deque(maxlen=64)


def started(buffer: AnyBuffer) -> None:
    """Note a result that may not be there yet."""
    _recent.append(weakref.ref(buffer))


def wait_for_all() -> None:
    """Wait until the last programs that were started are over.

    Raises:
        PjrtError: one of them failed.
    """
    if _in_c is not None:
        _in_c.wait()
    for reference in tuple(_recent):
        buffer = reference()
        if buffer is not None:
            buffer.block_until_ready()
        # Once is enough, unless it failed.
        with suppress(ValueError):
            _recent.remove(reference)


def is_resident(value: Any) -> bool:
    """Whether a value is a tensor on the device."""
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def is_divided(value: Any) -> bool:
    """Whether a value is a tensor that is divided over a mesh."""
    return is_resident(value) and contents_of(value).is_divided


def has_divided(given: Iterable[Any]) -> bool:
    """Whether a storage, among the contents and tensors of a call, is divided over a mesh."""
    # A generator would take as long as recording an operator does.
    for item in given:
        if isinstance(item, Contents) and isinstance(item.held, ShardedBuffer):
            return True
    return False


def contents_of(tensor: torch.Tensor) -> Contents:
    """The contents of a resident tensor's storage.

    Raises:
        DeviceError: a storage that the bridge did not make.
    """
    storage = tensor.untyped_storage()
    found = contents_at(storage)
    if found is None:
        if storage.nbytes():
            raise DeviceError(
                f"a tensor of shape {tuple(tensor.shape)} on device {tensor.device} has a storage "
                "that was not made by pjrt_bridge, or a slice of one; make it on the host and use "
                ".to()"
            )
        index = tensor.device.index or 0
        found = Contents(TensorType((0,), dtypes.from_torch(tensor.dtype)), index, None)
        storage.pjrt_contents = found  # type: ignore[attr-defined]
    return found


def contents_at(storage: Any) -> Contents | None:
    """The contents of a storage; None for one that the bridge did not make."""
    # Torch makes further storages over the address of one, for files say.
    address = storage.data_ptr()
    found: Contents | None = (_by_address.get if _in_c is None else _in_c.find)(address)
    return getattr(storage, "pjrt_contents", None) if found is None else found


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


def resident_tensor(elements: AnyBuffer | Pending, spec: ValueSpec, index: int) -> torch.Tensor:
    """A tensor of a buffer's elements, with the strides of a spec, in a storage of its own."""
    if isinstance(elements, (Buffer, ShardedBuffer)):
        started(elements)
    contents = Contents(elements.type, index, elements)
    return _tensor(contents, spec.type.shape, spec.strides, torch_dtype(spec.type.dtype))


def empty(
    shape: Sequence[int], dtype: torch.dtype, index: int, strides: Sequence[int] | None = None
) -> torch.Tensor:
    """A tensor that nothing was written into yet.

    Raises:
        RuntimeError: a negative size, or strides that no storage has, in PyTorch's words.
        MemoryError: more elements than a storage can have.
    """
    sizes = tuple(map(int, shape))
    row_major = Layout.default(len(sizes)).strides(sizes)
    steps = row_major if strides is None else tuple(map(int, strides))
    element = dtypes.from_torch(dtype)
    negative = next((size for size in sizes if size < 0), None)
    if negative is not None:
        raise RuntimeError(
            f"Trying to create tensor with negative dimension {negative}: {list(sizes)}"
        )
    type = TensorType(sizes, element)
    if type.nbytes > _LARGEST:
        raise MemoryError(
            f"a tensor of shape {sizes} and type {dtype} needs {type.nbytes} bytes on device "
            f"'{NAME}:{index}', where a storage has at most {_LARGEST}"
        )
    if steps != row_major:
        _need_steps(sizes, steps, dtype)
        type = _memory(sizes, steps, element)
    return _tensor(Contents(type, index, None), sizes, steps, dtype)


class ResultForm:
    """How the results of a place in a program lie, from which their tensors are made.

    Args:
        spec: shape, element type and strides.

    Attributes:
        spec: see above.
        memory: shape and element type of the array in memory.
    """

    __slots__ = ("_array", "_numbers", "memory", "spec")

    def __init__(self, spec: ValueSpec) -> None:
        self.spec = spec
        self._array = form_of_array(spec.memory)
        self.memory = self._array[0]
        self._numbers = _numbers(spec.type.shape, spec.strides, torch_dtype(spec.type.dtype))

    def tensor(self, elements: Pending, index: int) -> torch.Tensor:
        """A tensor of elements that lie so, in a storage of its own."""
        if _in_c is None:
            return resident_tensor(elements, self.spec, index)
        found: torch.Tensor = _in_c.tensor_of(
            Contents, self._array, index, elements, _exchange, self._numbers
        )
        return found


def _tensor(
    contents: Contents, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor whose storage holds these elements."""
    if _in_c is not None:
        numbers = _numbers(shape, strides, dtype)
        found: torch.Tensor = _in_c.Resident.tensor(contents, _exchange, numbers)
        return found
    made = third_party_device.tensor_without_memory(shape, strides, dtype, contents.index)
    storage = made.untyped_storage()
    storage.pjrt_contents = contents  # type: ignore[attr-defined]
    _by_address[storage.data_ptr()] = contents
    return made


@lru_cache(4096)
def _numbers(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> bytes:
    """Element type, sizes and strides, as `resident.c` takes them."""
    found = dtypes.from_torch(dtype).dlpack
    if found is None:
        raise UnsupportedDtype(f"tensors of {dtype} cannot be on this device")
    numbers = (*found, *shape, *strides)
    return struct.pack(f"{len(numbers)}q", *numbers)


def _need_steps(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> None:
    """See `empty`."""
    if len(sizes) != len(strides):
        raise RuntimeError(
            f"dimensionality of sizes ({len(sizes)}) must match dimensionality of strides "
            f"({len(strides)})"
        )
    spans = [(size - 1) * step for size, step in zip(sizes, strides, strict=True)]
    nbytes = (1 + sum(spans)) * dtype.itemsize
    if 0 not in sizes and (min(spans) < 0 or nbytes >= 1 << 63):
        raise RuntimeError(
            f"Storage size calculation overflowed with sizes={list(sizes)} and "
            f"strides={list(strides)}"
        )


def _memory(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> TensorType:
    """The array in a storage of a tensor whose strides are not row-major."""
    found = ValueSpec.argument(TensorType(shape, dtype), strides).memory
    last = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    elements = 0 if 0 in shape else last + 1
    return found if found.size == elements else TensorType((elements,), dtype)
