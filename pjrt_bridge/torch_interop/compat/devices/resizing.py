"""Makes tensors resizable whose memory torch did not allocate.

Torch resizes a storage (`resize_`, `out=` of another size, `untyped_storage().resize_`) by taking
memory from the storage's allocator, copying, and dropping what was there. A storage over memory of
others has no allocator and a flag that forbids this; torch offers no function that changes either.
So both are written where they lie in torch's C++ object. Where that is, is determined once in a
process, on objects that belong to this module, and tried: a torch that keeps them elsewhere is used
as well, and with one that keeps something else there results stay as torch makes them.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.dlpack import from_dlpack

_CPU_ALLOCATOR = "_ZN3c1015GetCPUAllocatorEv"
"""`c10::GetCPUAllocator()`, which libc10 exports."""

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_HEADER = 2 * _POINTER
"""Bytes of a C++ object with a reference count: its table of functions, and the counts."""

_WINDOW = 80
"""Bytes at the beginning of a StorageImpl that are searched; it has more since torch 2.0."""

_OF_TENSOR = 48
"""Bytes at the beginning of a TensorImpl, or of a Python tensor, that are searched."""


@dataclass(frozen=True, slots=True)
class StorageOffsets:
    """Where torch keeps what decides whether a tensor's memory can be resized, in bytes.

    Attributes:
        implementation: in a Python tensor, the address of its TensorImpl.
        storage: in a TensorImpl, the address of its StorageImpl.
        resizable: in a StorageImpl, the flag.
        allocator: in a StorageImpl, the address of its allocator.
        cpu: the allocator of torch's own tensors.
    """

    implementation: int
    storage: int
    resizable: int
    allocator: int
    cpu: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """All of them, for the dispatcher."""
        return astuple(self)

    def let_resize(self, storage: torch.UntypedStorage) -> None:
        """Let torch resize a storage in host memory."""
        address = storage._cdata
        ctypes.c_void_p.from_address(address + self.allocator).value = self.cpu
        ctypes.c_bool.from_address(address + self.resizable).value = True


@cache
def places() -> StorageOffsets | None:
    """Where they are in this torch; None where they were not found beyond doubt."""
    try:
        # This may be asked for while something is traced.
        with _disable_current_modes(), torch.inference_mode(False):
            found = _find()
            return found if found is not None and _works(found) else None
    except (OSError, AttributeError, RuntimeError, TypeError, ValueError):
        return None


def let_resize(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """The storage, which torch can resize from now on if this torch is known well enough."""
    found = places()
    if found is not None:
        found.let_resize(storage)
    return storage


def _find() -> StorageOffsets | None:
    if sys.implementation.name != "cpython" or not sys.platform.startswith("linux"):
        return None
    cpu = _cpu_allocator()
    owned = torch.empty(1 << 10, dtype=torch.uint8, device="cpu")
    foreign = from_dlpack(np.zeros(1 << 10, np.uint8))
    allocators, forbidding = [], []
    for tensor in (owned, foreign):
        storage = tensor.untyped_storage()
        before = ctypes.string_at(storage._cdata, _WINDOW)
        allocators.append(_words(before, cpu))
        # Torch forbids to resize what NumPy views: of a storage that it allocated, one byte
        # changes from 1 to 0, beside the counts.
        tensor.numpy()
        after = ctypes.string_at(storage._cdata, _WINDOW)
        forbidding.append(
            [
                (at, before[at], after[at])
                for at in range(_HEADER, _WINDOW)
                if before[at] != after[at]
            ]
        )
    implementations = _words(ctypes.string_at(id(owned), _OF_TENSOR), owned._cdata)
    storages = _words(ctypes.string_at(owned._cdata, _OF_TENSOR), owned.untyped_storage()._cdata)
    match allocators, forbidding, implementations, storages:
        case [[allocator], []], [[(flag, 1, 0)], []], [implementation], [inner]:
            return StorageOffsets(implementation, inner, flag, allocator, cpu)
    return None


def _cpu_allocator() -> int:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    function = getattr(library, _CPU_ALLOCATOR)
    function.restype = ctypes.c_void_p
    found = function()
    if not found:
        raise ValueError("torch has no allocator for host memory")
    return int(found)


def _words(content: bytes, wanted: int) -> list[int]:
    """Where in an object an address is."""
    found = range(0, len(content), _POINTER)
    return [
        at for at in found if int.from_bytes(content[at : at + _POINTER], sys.byteorder) == wanted
    ]


def _works(found: StorageOffsets) -> bool:
    """Whether torch resizes, with what it kept, a tensor that it would not resize otherwise."""
    values = np.arange(100, dtype=np.uint8)
    tensor = from_dlpack(values)
    storage = tensor.untyped_storage()
    if storage.resizable():
        return False
    held = sys.getrefcount(values)
    found.let_resize(storage)
    if not storage.resizable() or storage.nbytes() != 100 or storage.device.type != "cpu":
        return False
    storage.resize_(200)
    grown = storage.nbytes() == 200 and bool((tensor == torch.arange(100, device="cpu")).all())
    freed = sys.getrefcount(values) < held and tensor.data_ptr() != values.ctypes.data
    storage.resize_(0)
    return grown and freed and storage.nbytes() == 0
