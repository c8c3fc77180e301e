"""Functions for data that frameworks use and the bridge's own `put` and `to_numpy` do not."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.abi.values import int64s, read_int64s
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge.runtime import Buffer, Client, Layout
from pjrt_bridge.runtime.transfers.host import ALIGNMENT
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge_conformance import raw
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import equal, refused, require, same, works

RAW = Group("data")

F32 = dtypes.of("float32")
_X = np.arange(24, dtype=np.float32).reshape(4, 6)
_UNTIL_TRANSFERRED, _SHARED, _GIVEN = 1, 2, 3
_ON_DELETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def _aligned(values: Array) -> Array:
    memory = np.zeros(values.nbytes + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    x = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    x[...] = values
    return x


def _put(client: Client, x: Array, semantics: int) -> tuple[Buffer, int | None]:
    """A buffer with other semantics than the bridge's, and the event that gives `x` back."""
    dims = int64s(x.shape)
    made = client.api.call(
        "Client_BufferFromHostBuffer",
        client=client.handle.pointer,
        data=raw.address(x),
        type=dtypes.from_numpy(x.dtype).code,
        dims=ctypes.addressof(dims),
        num_dims=x.ndim,
        host_buffer_semantics=semantics,
        device=client.devices[0].pointer,
    )
    return raw.buffer(client, made.buffer, *x.shape), made.done_with_host_buffer


@RAW.check
def until_transfer_completes(context: Context) -> None:
    """Memory put with kImmutableUntilTransferCompletes may change after its event."""
    client = context.client
    x = np.arange(100_000, dtype=np.float32)
    buffer, done = _put(client, x, _UNTIL_TRANSFERRED)
    raw.finish(client.api, done)
    kept = x.copy()
    x[:] = -1
    same(buffer.to_numpy(), kept, "values that were put")


@RAW.each([_SHARED, _GIVEN])
def zero_copy_semantics(context: Context, semantics: int) -> None:
    """Memory put with a zero-copy semantics is given back once the buffer is gone."""
    client = context.client
    x = _aligned(_X)
    buffer, done = _put(client, x, semantics)
    same(buffer.to_numpy(), _X, "a buffer")
    buffer.delete()
    raw.finish(client.api, done)


@RAW.check
def host_size_query(context: Context) -> None:
    """PJRT_Buffer_ToHostBuffer without a target tells the bytes that one needs."""
    client = context.client
    with client.put(_X) as buffer, buffer.held() as pointer:
        found = client.api.call("Buffer_ToHostBuffer", src=pointer)
        equal(found.dst_size, _X.nbytes, "dst_size")


@RAW.check
def host_too_small(context: Context) -> None:
    """Reading into too little memory is a clean error."""
    client = context.client
    target = np.zeros(_X.size + 8, np.float32)

    def read(pointer: int) -> None:
        copied = client.api.call(
            "Buffer_ToHostBuffer", src=pointer, dst=raw.address(target), dst_size=8
        )
        raw.finish(client.api, copied.event)

    with client.put(_X) as buffer, buffer.held() as pointer:
        refused(lambda: read(pointer), "reading 96 bytes into 8")
    equal(float(np.abs(target[2:]).sum()), 0.0, "memory behind the target")
    works(client, "a read into too little memory")


@RAW.check
def raw_to_host(context: Context) -> None:
    """A part of a buffer's bytes can be read."""
    client = context.client
    raw.need(client.api, "Buffer_CopyRawToHost")
    target = np.zeros(4, np.float32)
    with client.put(_X) as buffer, buffer.held() as pointer:
        copied = client.api.call(
            "Buffer_CopyRawToHost",
            buffer=pointer,
            dst=raw.address(target),
            offset=32,
            transfer_size=16,
        )
        raw.finish(client.api, copied.event)
    same(target, _X.reshape(-1)[8:12], "bytes 32 to 48")


@RAW.check
def raw_to_host_outside(context: Context) -> None:
    """Reading bytes behind a buffer's end is a clean error."""
    client = context.client
    raw.need(client.api, "Buffer_CopyRawToHost")
    target = np.zeros(64, np.float32)

    def read(pointer: int) -> None:
        copied = client.api.call(
            "Buffer_CopyRawToHost",
            buffer=pointer,
            dst=raw.address(target),
            offset=64,
            transfer_size=64,
        )
        raw.finish(client.api, copied.event)

    with client.put(_X) as buffer, buffer.held() as pointer:
        refused(lambda: read(pointer), "reading bytes 64 to 128 of 96")


@RAW.check
def dimensions(context: Context) -> None:
    """Dimensions, true dimensions and dynamic dimensions of a buffer with a static shape."""
    api = context.client.api
    with context.client.put(_X) as buffer, buffer.held() as pointer:
        found = api.call("Buffer_Dimensions", buffer=pointer)
        equal(read_int64s(found.dims, found.num_dims), (4, 6), "dimensions")
        raw.need(api, "Buffer_UnpaddedDimensions", "Buffer_DynamicDimensionIndices")
        found = api.call("Buffer_UnpaddedDimensions", buffer=pointer)
        equal(read_int64s(found.unpadded_dims, found.num_dims), (4, 6), "true dimensions")
        found = api.call("Buffer_DynamicDimensionIndices", buffer=pointer)
        equal(found.num_dynamic_dims, 0, "dynamic dimensions")


@RAW.check
def external_reference(context: Context) -> None:
    """An external reference keeps a buffer's memory where it is."""
    client = context.client
    api = client.api
    raw.need(
        api,
        "Buffer_IncreaseExternalReferenceCount",
        "Buffer_DecreaseExternalReferenceCount",
        "Buffer_OpaqueDeviceMemoryDataPointer",
    )
    with client.put(_X) as buffer, buffer.held() as pointer:
        buffer.block_until_ready()
        api.call("Buffer_IncreaseExternalReferenceCount", buffer=pointer)
        try:
            found = [
                api.call("Buffer_OpaqueDeviceMemoryDataPointer", buffer=pointer).device_memory_ptr
                for _ in range(2)
            ]
            require(found[0] and found[0] == found[1], f"addresses of one buffer: {found}")
        finally:
            api.call("Buffer_DecreaseExternalReferenceCount", buffer=pointer)
        refused(
            lambda: api.call("Buffer_DecreaseExternalReferenceCount", buffer=pointer),
            "giving back a reference that nobody has",
        )


@RAW.check
def unsafe_pointer(context: Context) -> None:
    """The unsafe pointer of a buffer is the address of its memory."""
    client = context.client
    raw.need(client.api, "Buffer_UnsafePointer", "Buffer_OpaqueDeviceMemoryDataPointer")
    with client.put(_X) as buffer, buffer.held() as pointer:
        found = client.api.call("Buffer_UnsafePointer", buffer=pointer).buffer_pointer
        equal(found, buffer.address, "address")


@RAW.check
def view(context: Context) -> None:
    """A view of memory reads as that memory, and says when it is done with it."""
    client = context.client
    raw.need(client.api, "Client_CreateViewOfDeviceBuffer")
    with client.put(_X) as original:
        address, gone = original.address, threading.Event()
        deleter = _ON_DELETE(lambda memory, argument: gone.set())
        dims = int64s(_X.shape)
        made = client.api.call(
            "Client_CreateViewOfDeviceBuffer",
            client=client.handle.pointer,
            device_buffer_ptr=address,
            dims=ctypes.addressof(dims),
            num_dims=2,
            element_type=F32.code,
            device=client.devices[0].pointer,
            on_delete_callback=ctypes.cast(deleter, ctypes.c_void_p).value,
        )
        view = raw.buffer(client, made.buffer, *_X.shape)
        same(view.to_numpy(), _X, "a view")
        equal(view.address, address, "address")
        view.delete()
        require(gone.wait(30), "on_delete_callback was not called within 30 s of the view's end")


@RAW.check
def uninitialized(context: Context) -> None:
    """A buffer without values has the shape that was asked for, and can be deleted."""
    client = context.client
    raw.need(client.api, "Client_CreateUninitializedBuffer")
    dims = int64s((5, 7))
    made = client.api.call(
        "Client_CreateUninitializedBuffer",
        client=client.handle.pointer,
        shape_dims=ctypes.addressof(dims),
        shape_num_dims=2,
        shape_element_type=F32.code,
        device=client.devices[0].pointer,
    )
    with raw.buffer(client, made.buffer, 5, 7) as buffer:
        equal(buffer.to_numpy().shape, (5, 7), "shape")
        require(buffer.nbytes >= 140, f"{buffer.nbytes} bytes hold no 140")


@contextmanager
def _alias(client: Client) -> Iterator[tuple[Buffer, int]]:
    """A buffer that stands for another, and the handle by which it becomes that."""
    raw.need(client.api, "Client_CreateAliasBuffer", "Client_FulfillAliasBuffer")
    dims, (layout, _kept) = int64s(_X.shape), Layout.default(_X.ndim).encode()
    made = client.api.call(
        "Client_CreateAliasBuffer",
        client=client.handle.pointer,
        memory=raw.default_memory(client),
        shape_dims=ctypes.addressof(dims),
        shape_num_dims=2,
        shape_element_type=F32.code,
        # Without one some plugins cannot tell how many bytes the buffer has.
        shape_layout=ctypes.addressof(layout),
    )
    with raw.buffer(client, made.alias_buffer, *_X.shape) as buffer:
        yield buffer, made.fulfill_alias_buffer_cb


@RAW.check
def alias(context: Context) -> None:
    """An alias buffer is not ready before it is fulfilled, and reads as its target after."""
    client = context.client
    with _alias(client) as (buffer, fulfill), client.put(_X) as target:
        require(not buffer.ready(), "it is ready before there is a target")
        with target.held() as pointer:
            client.api.call(
                "Client_FulfillAliasBuffer",
                client=client.handle.pointer,
                buffer=pointer,
                fulfill_alias_buffer_cb=fulfill,
            )
        same(buffer.to_numpy(), _X, "an alias")


@RAW.check
def alias_error(context: Context) -> None:
    """An alias buffer that is fulfilled with an error gives that error to its readers.

    XLA's plugins give it to the caller that fulfills the buffer, too.
    """
    client = context.client
    text = b"no such luck"

    def fulfill_and_read(buffer: Buffer, fulfill: int) -> None:
        memory = ctypes.create_string_buffer(text, len(text))
        client.api.call(
            "Client_FulfillAliasBuffer",
            client=client.handle.pointer,
            status_code=int(ErrorCode.ABORTED),
            error_message=ctypes.addressof(memory),
            error_message_size=len(text),
            fulfill_alias_buffer_cb=fulfill,
        )
        buffer.to_numpy()

    with _alias(client) as (buffer, fulfill):
        error = refused(lambda: fulfill_and_read(buffer, fulfill), "an alias of an error")
        require(text.decode() in error.message, f"the error says {error.message!r}")
