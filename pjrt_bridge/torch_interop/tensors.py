"""The border between torch tensors and buffers.

Host memory is shared both ways where the plugin uses it in place: a tensor goes in as a view, a
result comes out as a tensor over the buffer. A tensor whose memory is dense in another order than
row-major (a transposed weight, a permuted activation) crosses as the dense array that it is; the
program permutes it, which costs nothing where the compiler can read it in that order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.dlpack import from_dlpack

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.runtime import Buffer, Client
from pjrt_bridge.runtime.host import HostArray
from pjrt_bridge.stablehlo.types import TensorType


@dataclass(frozen=True)
class Form:
    """How the elements of a tensor lie in memory when it crosses the border.

    Attributes:
        type: shape and element type as the graph sees them.
        order: dimensions from the slowest to the fastest varying; None is row-major.
    """

    type: TensorType
    order: tuple[int, ...] | None

    @staticmethod
    def of(promise: torch.Tensor) -> Form:
        """The form of a (fake) tensor.

        Raises:
            UnsupportedDtype: torch's element type has no PJRT counterpart.
        """
        type = TensorType(tuple(promise.shape), dtypes.from_torch(promise.dtype))
        if promise.is_contiguous():
            return Form(type, None)
        strides = promise.stride()
        order = tuple(sorted(range(type.rank), key=lambda dim: (-strides[dim], dim)))
        return Form(type, order if promise.permute(order).is_contiguous() else None)

    @property
    def dense(self) -> TensorType:
        """Shape and type of the row-major array in memory."""
        if self.order is None:
            return self.type
        return TensorType(tuple(self.type.shape[dim] for dim in self.order), self.type.dtype)

    @property
    def inverse(self) -> tuple[int, ...]:
        """The permutation from the array in memory back to the graph's dimensions."""
        order = self.order or tuple(range(self.type.rank))
        return tuple(sorted(range(len(order)), key=order.__getitem__))

    def to_host_array(self, tensor: torch.Tensor) -> HostArray:
        """The memory of a tensor in this form, copied only where it lies differently."""
        dense = tensor if self.order is None else tensor.permute(self.order)
        if not dense.is_contiguous():
            dense = dense.contiguous()
        type = self.dense
        return HostArray(dense.data_ptr(), type.dtype, type.shape, None, dense)


def to_tensor(buffer: Buffer, form: Form) -> torch.Tensor:
    """A tensor over a buffer's memory, or a copy where the memory is not the host's."""
    tensor = from_dlpack(buffer) if buffer.client.shares_host_memory else _copied(buffer)
    return tensor if form.order is None else tensor.permute(form.inverse)


def _copied(buffer: Buffer) -> torch.Tensor:
    array = buffer.to_numpy()
    raw = torch.from_numpy(array.reshape(-1).view("u1"))
    return raw.view(torch_dtype(buffer.dtype)).reshape(array.shape)


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch name of an element type that has one."""
    assert dtype.torch is not None
    found = getattr(torch, dtype.torch)
    assert isinstance(found, torch.dtype)
    return found


class StaticInput:
    """The buffer of a parameter, kept from call to call.

    Where the plugin uses host memory in place the buffer is a view and follows in-place updates, so
    it holds as long as the tensor keeps its memory. Elsewhere it is a copy that is renewed when the
    tensor's version counter moves.
    """

    def __init__(self, client: Client, form: Form) -> None:
        self._client = client
        self._form = form
        self._buffer: Buffer | None = None
        self._address = 0
        self._version: int | None = None

    def buffer(self, tensor: torch.Tensor) -> Buffer:
        """The buffer of the tensor as it is now."""
        address = tensor.data_ptr()
        version = None if self._client.shares_host_memory else tensor._version
        if self._buffer is None or address != self._address or version != self._version:
            return self._renew(tensor, address, version)
        return self._buffer

    def _renew(self, tensor: torch.Tensor, address: int, version: int | None) -> Buffer:
        host = self._form.to_host_array(tensor.detach())
        buffer = self._client.put_host(host)
        # A copy of unaligned or gapped host memory would not follow updates: make it in each call.
        follows = host.address == address and host.shareable
        if follows or not self._client.shares_host_memory:
            self._buffer, self._address, self._version = buffer, address, version
        else:
            self._buffer = None
        return buffer
