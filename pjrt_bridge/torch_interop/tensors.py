"""The border between torch tensors and buffers.

Host memory is shared both ways where the plugin uses it in place: a tensor goes in as a view, a
result comes out as a tensor over the buffer. A tensor whose memory is dense in another order than
row-major (a transposed weight, a permuted activation) crosses as the dense array that it is; the
program permutes it, which costs nothing where the compiler can read it in that order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import DEVICE_FAILURES, DataError
from pjrt_bridge.runtime import ShardedBuffer
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.runtime.ownership.pins import Pin
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.compat.devices import resizing


def type_of(promise: torch.Tensor) -> TensorType:
    """Shape and element type of a (fake) tensor.

    Raises:
        UnsupportedDtype: torch's element type has no PJRT counterpart.
    """
    return TensorType(tuple(promise.shape), dtypes.from_torch(promise.dtype))


def argument_spec(promise: torch.Tensor) -> ValueSpec:
    """How a (fake) tensor crosses as an argument; row-major where its memory has gaps or repeats.

    Raises:
        UnsupportedDtype: torch's element type has no PJRT counterpart.
    """
    return ValueSpec.argument(type_of(promise), promise.stride())


def result_spec(promise: torch.Tensor) -> ValueSpec:
    """How a promised result crosses, with torch's strides, also of an expanded tensor.

    Gaps between elements are closed; where the user would see that, `passes/aliases/` puts them
    back.

    Raises:
        UnsupportedDtype: torch's element type has no PJRT counterpart.
    """
    return ValueSpec.result(type_of(promise), promise.stride())


def row_major_spec(promise: torch.Tensor) -> ValueSpec:
    """The elements of a (fake) tensor in row-major order, for readers of any kind.

    Raises:
        UnsupportedDtype: torch's element type has no PJRT counterpart.
    """
    return ValueSpec.row_major(type_of(promise))


def array_over(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor of the host as an array over its memory where that is row-major, else over a copy.

    `Tensor.numpy` would forbid torch to resize the memory from then on.

    Raises:
        UnsupportedDtype: torch's element type has no PJRT counterpart.
    """
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    elements = np.from_dlpack(dense.reshape(-1).view(torch.uint8))
    return elements.view(dtypes.from_torch(dense.dtype).numpy).reshape(tuple(dense.shape))


def in_memory(tensor: torch.Tensor, spec: ValueSpec) -> torch.Tensor:
    """The row-major array that a tensor is in memory, copied where it lies differently.

    Raises:
        DataError: a tensor of another shape.
    """
    # Detached, it holds this memory even if the tensor is given other memory meanwhile.
    dense = tensor.detach()
    if dense.shape != spec.type.shape:
        raise DataError(
            f"found a tensor of shape {tuple(dense.shape)} where {spec.type} was promised; the "
            "fake of a custom operator must give the shape that the operator gives"
        )
    dtype = torch_dtype(spec.type.dtype)
    if dense.dtype is not dtype:
        # Some of torch's own operators give another type than their fakes promise.
        dense = dense.to(dtype)
    if dense.is_conj() or dense.is_neg():
        # Views that conjugate or negate when they are read; their memory does neither.
        dense = dense.resolve_conj().resolve_neg()
    if spec.order is not None:
        dense = dense.permute(spec.order)
    return dense if dense.is_contiguous() else dense.contiguous()


def adopt(buffer: AnyBuffer, spec: ValueSpec) -> torch.Tensor:
    """A tensor over a buffer's memory, or over a copy where the memory is not the host's.

    Waits for the values.
    """
    shape, dtype = spec.type.shape, torch_dtype(spec.type.dtype)
    if 0 in shape:
        return torch.empty_strided(shape, spec.strides, dtype=dtype, device="cpu")
    memory = _in_place(buffer, spec.nbytes)
    if memory is None:
        memory = buffer.to_numpy().reshape(-1).view("u1")
    # Torch lets go of `memory` as C does, also while a Python exception is on its way.
    flat = torch.frombuffer(memory, dtype=dtype)
    storage = resizing.let_resize(flat.untyped_storage())
    # As `over` does, without one tensor more: a step of training has hundreds of results.
    return flat.set_(storage, 0, shape, spec.strides).data


def over(
    storage: torch.UntypedStorage,
    like: torch.Tensor,
    offset: int | torch.SymInt,
    shape: Sequence[int],
    strides: Sequence[int],
) -> torch.Tensor:
    """A tensor over memory, of the element type and device of another one.

    It is no view of another, which autograd would forbid the user to write into, and nothing was
    written into it yet: its version is 0.
    """
    made = torch.empty(0, dtype=like.dtype, device=like.device)
    # `set_` counts as a write, and `data` has a count of its own.
    return made.set_(storage, offset, shape, strides).data


def _in_place(buffer: AnyBuffer, nbytes: int) -> Any:
    """The host memory of a buffer, which keeps it; None where it cannot be had."""
    if isinstance(buffer, ShardedBuffer) or not buffer.client.shares_host_memory:
        return None
    try:
        memory = _bytes(nbytes).from_address(buffer.address)
        memory.pin = Pin(buffer.handle)
    except DEVICE_FAILURES:
        # The values may be there nevertheless; if they are not, the copy says why.
        return None
    return memory


@lru_cache(1024)
def _bytes(count: int) -> Any:
    return ctypes.c_char * count


@cache
def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch name of an element type that has one."""
    assert dtype.torch is not None
    found = getattr(torch, dtype.torch)
    assert isinstance(found, torch.dtype)
    return found


def with_rows(tensor: torch.Tensor, dim: int | None, count: int) -> torch.Tensor:
    """A tensor of a call that is mapped, with the rows as its first dimension.

    Args:
        tensor: an argument.
        dim: of the rows; None: all rows have the same tensor.
        count: how many rows there are.
    """
    return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
