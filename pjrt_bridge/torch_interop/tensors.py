"""The border between torch tensors and buffers.

Host memory is shared both ways where the plugin uses it in place: a tensor goes in as a view, a
result comes out as a tensor over the buffer. A tensor whose memory is dense in another order than
row-major (a transposed weight, a permuted activation) crosses as the dense array that it is; the
program permutes it, which costs nothing where the compiler can read it in that order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import DEVICE_FAILURES, DataError
from pjrt_bridge.mixed.program import Call
from pjrt_bridge.runtime import Buffer, Client, Layout
from pjrt_bridge.runtime.dispatch.plans import Array, Framework, Made
from pjrt_bridge.runtime.ownership.handles import Pin
from pjrt_bridge.runtime.transfers.dlpack import is_row_major
from pjrt_bridge.runtime.transfers.host import HostArray
from pjrt_bridge.stablehlo.builder import orders
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.compat import resizing


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
        """The form of a (fake) tensor; row-major where its memory has gaps or repeats.

        Raises:
            UnsupportedDtype: torch's element type has no PJRT counterpart.
        """
        type = TensorType(tuple(promise.shape), dtypes.from_torch(promise.dtype))
        return Form(type, _reordered(_dense_order(type.shape, promise.stride())))

    @property
    def row_major(self) -> Form:
        """The same elements in row-major order."""
        return Form(self.type, None)

    @cached_property
    def dense(self) -> TensorType:
        """Shape and type of the row-major array in memory."""
        if self.order is None:
            return self.type
        return TensorType(tuple(self.type.shape[dim] for dim in self.order), self.type.dtype)

    @cached_property
    def _dtype(self) -> torch.dtype:
        return torch_dtype(self.type.dtype)

    @property
    def inverse(self) -> tuple[int, ...]:
        """The permutation from the array in memory back to the graph's dimensions."""
        return orders.inverse_order(self.order or range(self.type.rank))

    @property
    def array(self) -> Array:
        """The array in memory, with the graph's dimensions."""
        dense = self.dense.shape
        steps = Layout.default(self.type.rank).strides(dense)
        strides = tuple(steps[at] for at in self.inverse)
        return Array(self.dense, self.type.shape, strides)

    def arranged(self, tensor: torch.Tensor) -> torch.Tensor:
        """The array in memory that a tensor has in this form, copied where it lies differently.

        Raises:
            DataError: a tensor of another shape.
        """
        # Detached, it holds this memory even if the tensor is given other memory meanwhile.
        dense = tensor.detach()
        if dense.shape != self.type.shape:
            raise DataError(
                f"found a tensor of shape {tuple(dense.shape)} where {self.type} was promised; the "
                "fake of a custom operator must give the shape that the operator gives"
            )
        if dense.dtype is not self._dtype:
            # Some of torch's own operators give another type than their fakes promise.
            dense = dense.to(self._dtype)
        if dense.is_conj() or dense.is_neg():
            # Views that conjugate or negate when they are read; their memory does neither.
            dense = dense.resolve_conj().resolve_neg()
        if self.order is not None:
            dense = dense.permute(self.order)
        return dense if dense.is_contiguous() else dense.contiguous()

    def to_host_array(self, tensor: torch.Tensor) -> HostArray:
        """The memory of a tensor in this form, as `arranged` gives it.

        Raises:
            DataError: a tensor of another shape.
        """
        dense = self.arranged(tensor)
        type = self.dense
        return HostArray(dense.data_ptr(), type.dtype, type.shape, None, dense)


@dataclass(frozen=True)
class Result:
    """A tensor that is made of a result of a program.

    Strides are those that torch promises, also of a permuted or an expanded tensor. Gaps between
    elements are closed here; where the user would see that, `aliases/` puts them back.

    Attributes:
        type: shape and element type as the graph sees them.
        strides: of the tensor, in elements.
        form: of what the program has to compute: one element for each that is repeated.
    """

    type: TensorType
    strides: tuple[int, ...]
    form: Form

    @staticmethod
    def of(promise: torch.Tensor) -> Result:
        """The result that keeps torch's promise.

        Raises:
            UnsupportedDtype: torch's element type has no PJRT counterpart.
        """
        type = TensorType(tuple(promise.shape), dtypes.from_torch(promise.dtype))
        strides = tuple(promise.stride())
        shape = tuple(
            1 if stride == 0 and size > 1 else size
            for size, stride in zip(type.shape, strides, strict=True)
        )
        order = _dense_order(shape, strides)
        if order is None:
            steps = Layout.default(type.rank).strides(shape)
            repeats = zip(shape, type.shape, steps, strict=True)
            strides = tuple(0 if once != size else step for once, size, step in repeats)
        return Result(type, strides, Form(TensorType(shape, type.dtype), _reordered(order)))

    @staticmethod
    def row_major(promise: torch.Tensor) -> Result:
        """The result that has torch's elements in row-major order, for readers of any kind.

        Raises:
            UnsupportedDtype: torch's element type has no PJRT counterpart.
        """
        type = TensorType(tuple(promise.shape), dtypes.from_torch(promise.dtype))
        strides = Layout.default(type.rank).strides(type.shape)
        return Result(type, strides, Form(type, None))

    @property
    def made(self) -> Made:
        """The array in memory, and the tensor over it."""
        return Made(self.form.array, self.type.shape, self.strides)

    def tensor(self, buffer: Buffer) -> torch.Tensor:
        """A tensor over a buffer's memory, or over a copy where the memory is not the host's.

        Waits for the values.
        """
        shape, dtype = self.type.shape, self._dtype
        if 0 in shape:
            return torch.empty_strided(shape, self.strides, dtype=dtype)
        memory = self._in_place(buffer)
        if memory is None:
            memory = buffer.to_numpy().reshape(-1).view("u1")
        # Torch lets go of `memory` as C does, also while a Python exception is on its way. The
        # tensor is no view of another, which autograd would forbid the user to write into.
        flat = torch.frombuffer(memory, dtype=dtype)
        storage = resizing.let_resize(flat.untyped_storage())
        return flat.set_(storage, 0, shape, self.strides)

    def _in_place(self, buffer: Buffer) -> Any:
        """The host memory of a buffer, which keeps it; None where it cannot be had."""
        if not buffer.client.shares_host_memory:
            return None
        try:
            memory = self._memory.from_address(buffer.address)
            memory.pin = Pin(buffer.handle)
        except DEVICE_FAILURES:
            # The values may be there nevertheless; if they are not, the copy says why.
            return None
        return memory

    @cached_property
    def _dtype(self) -> torch.dtype:
        return torch_dtype(self.type.dtype)

    @cached_property
    def _memory(self) -> Any:
        return ctypes.c_char * self.form.type.nbytes


def _dense_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Dimensions from the slowest to the fastest varying; None where memory has gaps or repeats."""
    rank = len(shape)
    if is_row_major(shape, strides):
        return tuple(range(rank))
    order = tuple(sorted(range(rank), key=lambda dim: (-strides[dim], dim)))
    if is_row_major([shape[dim] for dim in order], [strides[dim] for dim in order]):
        return order
    return None


def has_gaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor's elements lie apart from each other in memory, each once."""
    if 0 in shape or any(size > 1 and not step for size, step in zip(shape, strides, strict=True)):
        return False
    return _dense_order(shape, strides) is None


def _reordered(order: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if order is None or order == tuple(range(len(order))) else order


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch name of an element type that has one."""
    assert dtype.torch is not None
    found = getattr(torch, dtype.torch)
    assert isinstance(found, torch.dtype)
    return found


def framework() -> Framework | None:
    """How torch's tensors are read and made in C; None for a torch that does not offer it."""
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        return None
    found = resizing.places()
    # A storage stays when its tensor is given other memory.
    return Framework(
        exchange,
        torch.Tensor,
        torch.Tensor.is_neg,
        torch.Tensor.untyped_storage,
        None if found is None else found.numbers,
    )


def put(
    client: Client, form: Form, tensor: torch.Tensor, call: Call, *, writable: bool = False
) -> tuple[Buffer, bool]:
    """A buffer of a tensor's elements, and whether it is the tensor's memory; the call counts."""
    host = form.to_host_array(tensor)
    shared = _is_in_place(client, host, tensor)
    call.crossed(call.at, form.type.nbytes, shared=shared)
    return client.put_host(host, writable=writable), shared


def view(client: Client, form: Form, tensor: torch.Tensor) -> Buffer | None:
    """A buffer over a tensor's own memory; None where the plugin cannot use that in place."""
    host = form.to_host_array(tensor)
    return client.put_host(host) if _is_in_place(client, host, tensor) else None


def _is_in_place(client: Client, host: HostArray, tensor: torch.Tensor) -> bool:
    return client.shares_host_memory and host.shareable and host.address == tensor.data_ptr()


class StaticInputs:
    """The buffers of parameters and other tensors that a graph reads in every call.

    Where the plugin uses host memory in place a buffer is a view and follows in-place updates, so
    it holds as long as the tensor keeps its memory. Elsewhere it is a copy that is renewed when the
    tensor's version counter moves; torch moves it with every in-place operation, except those on
    `tensor.data`.

    Args:
        client: where the buffers live.
        forms: of the tensors.
    """

    def __init__(self, client: Client, forms: Sequence[Form]) -> None:
        self._client = client
        self._forms = tuple(forms)
        self._mark: Callable[[torch.Tensor], object] = (
            torch.Tensor.data_ptr if client.shares_host_memory else _version_mark
        )
        # One tuple, replaced as a whole: other threads see marks and buffers that belong together.
        self._kept: tuple[list[object], list[Buffer | None]] = (
            [_Never() for _ in self._forms],
            [None for _ in self._forms],
        )

    def buffers(self, tensors: Sequence[torch.Tensor], call: Call) -> list[Buffer | None]:
        """A buffer for each tensor as it is now. The list must not be changed."""
        marks = list(map(self._mark, tensors))
        old_marks, buffers = self._kept
        if marks == old_marks:
            return buffers
        buffers = buffers.copy()
        for index, (tensor, form) in enumerate(zip(tensors, self._forms, strict=True)):
            if marks[index] != old_marks[index]:
                # Detached, it stays in this memory whatever other threads give to the tensor.
                there = tensor.detach()
                marks[index] = self._mark(there)
                buffers[index], shared = put(self._client, form, there, call)
                if self._client.shares_host_memory and not shared:
                    # A copy does not follow updates of the tensor: it is made in each call.
                    marks[index] = _Never()
        self._kept = marks, buffers
        return buffers


class _Never:
    """A mark that no later call has: objects are equal only to themselves."""


def _version_mark(tensor: torch.Tensor) -> object:
    # Tensors of inference mode count no versions.
    return _Never() if tensor.is_inference() else (tensor.data_ptr(), tensor._version)
