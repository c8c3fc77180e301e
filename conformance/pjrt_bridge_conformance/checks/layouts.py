"""Layouts: the order of elements in device memory, chosen, stated and kept."""

from __future__ import annotations

import ctypes
from itertools import permutations

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import int64s
from pjrt_bridge.errors import PjrtError
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge_conformance import raw
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import equal, require, same
from pjrt_bridge_conformance.outcomes import Unsupported

LAYOUTS = Group("layouts")

_X = np.arange(6, dtype=np.float32).reshape(2, 3)
_CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
_ORDERS = [",".join(map(str, order)) for order in permutations(range(3))]


def _identity(shape: str, argument: str = "", result: str = "") -> str:
    def mode(order: str) -> str:
        return f'{{mhlo.layout_mode = "{order}"}}' if order else ""

    kind = f"tensor<{shape}xf32>"
    return (
        f"module {{ func.func @main(%x: {kind} {mode(argument)}) -> ({kind} {mode(result)}) "
        f"{{ return %x : {kind} }} }}"
    )


@LAYOUTS.each([1, 2, 3, 5])
def stated(context: Context, rank: int) -> None:
    """A buffer states a layout that orders its dimensions."""
    raw.need(context.client.api, "Buffer_GetMemoryLayout")
    x = np.zeros(tuple(range(2, 2 + rank)), np.float32)
    with context.client.put(x) as buffer:
        order = buffer.layout.minor_to_major
        equal(sorted(order), list(range(rank)), "dimensions of the layout")


@LAYOUTS.check
def one_default(context: Context) -> None:
    """Buffers of one shape and type have one layout, whether they were put or computed."""
    client = context.client
    raw.need(client.api, "Buffer_GetMemoryLayout")
    with client.compile(_identity("2x3")) as executable:
        (result,) = executable(_X)
        equal(result.layout, client.put(_X).layout, "layout of a result")


@LAYOUTS.check
def transposed_computation(context: Context) -> None:
    """What a program transposes and what was put transposed are the same to programs."""
    client = context.client
    with client.compile(_identity("2x3")) as executable:
        column_major = np.asfortranarray(_X)
        (result,) = executable(column_major)
        same(result.to_numpy(), _X, "an array that was put column-major")


def _compiled(client: Client, text: str) -> Array:
    try:
        executable = client.compile(text)
    except PjrtError as error:
        raise Unsupported(f"the layout is refused in a clean way: {error}") from error
    with executable:
        (result,) = executable(_CUBE)
        return result.to_numpy()


@LAYOUTS.each(_ORDERS)
def result_layout(context: Context, order: str) -> None:
    """A result with a layout of the caller's choice reads right."""
    found = _compiled(context.client, _identity("2x3x4", result=f"{{{order}}}"))
    same(found, _CUBE, f"a result in the order {{{order}}}")


@LAYOUTS.each(_ORDERS)
def honoured(context: Context, order: str) -> None:
    """A result with a layout of the caller's choice states that layout."""
    client = context.client
    raw.need(client.api, "Buffer_GetMemoryLayout")
    try:
        executable = client.compile(_identity("2x3x4", result=f"{{{order}}}"))
    except PjrtError as error:
        raise Unsupported(f"the layout is refused in a clean way: {error}") from error
    with executable:
        (result,) = executable(_CUBE)
        expected = tuple(map(int, order.split(",")))
        if result.layout.minor_to_major != expected:
            raise Unsupported(f"the plugin has made {result.layout!r} of it")


@LAYOUTS.each(_ORDERS)
def argument_layout(context: Context, order: str) -> None:
    """An argument in a layout of the caller's choice is read as what it is."""
    client = context.client
    wanted = f"{{{order}}}"
    try:
        maker = client.compile(_identity("2x3x4", result=wanted))
        reader = client.compile(_identity("2x3x4", argument=wanted))
    except PjrtError as error:
        raise Unsupported(f"the layout is refused in a clean way: {error}") from error
    with maker, reader:
        (value,) = maker(_CUBE)
        if value.layout.minor_to_major != tuple(map(int, order.split(","))):
            raise Unsupported(f"the plugin has made {value.layout!r} of it")
        (found,) = reader.execute([value])
        same(found.to_numpy(), _CUBE, f"an argument in the order {wanted}")


@LAYOUTS.check
def chosen_by_compiler(context: Context) -> None:
    """A result whose layout is left to the compiler reads right."""
    found = _compiled(context.client, _identity("2x3x4", result="auto"))
    same(found, _CUBE, "a result in a layout of the compiler's choice")


@LAYOUTS.check
def copied(context: Context) -> None:
    """A copy of a buffer with a layout of the caller's choice reads right."""
    client = context.client
    try:
        executable = client.compile(_identity("2x3", result="{0,1}"))
    except PjrtError as error:
        raise Unsupported(f"the layout is refused in a clean way: {error}") from error
    with executable:
        (result,) = executable(_X)
        same(result.copy_to(client.devices[0]).to_numpy(), _X, "a copy")


@LAYOUTS.check
def put_with_layout(context: Context) -> None:
    """A buffer made with a device layout states it."""
    client = context.client
    raw.need(client.api, "Buffer_GetMemoryLayout")
    order, dims = int64s((0, 1)), int64s(_X.shape)
    layout = STRUCTS["PJRT_Buffer_MemoryLayout"].new()
    layout.layout.struct_size = STRUCTS["PJRT_Buffer_MemoryLayout_Tiled"].size
    layout.layout.minor_to_major = ctypes.addressof(order)
    layout.layout.minor_to_major_size = 2
    made = client.api.call(
        "Client_BufferFromHostBuffer",
        client=client.handle.pointer,
        data=raw.address(_X),
        type=dtypes.of("float32").code,
        dims=ctypes.addressof(dims),
        num_dims=2,
        device=client.devices[0].pointer,
        device_layout=ctypes.addressof(layout),
    )
    raw.finish(client.api, made.done_with_host_buffer)
    with raw.buffer(client, made.buffer, 2, 3) as buffer:
        equal(buffer.layout.minor_to_major, (0, 1), "layout")


@LAYOUTS.check
def strides(context: Context) -> None:
    """The bytes that a buffer takes hold its layout, padding included."""
    with context.client.put(_CUBE) as buffer:
        layout = buffer.layout
        last = sum(
            (size - 1) * step
            for size, step in zip(_CUBE.shape, layout.strides(_CUBE.shape), strict=True)
        )
        require(buffer.nbytes >= 4 * (last + 1), f"{buffer.nbytes} bytes hold no {layout!r}")


@LAYOUTS.check
def row_major_by_name(context: Context) -> None:
    """Row-major order, asked for by name, is accepted and right."""
    found = _compiled(context.client, _identity("2x3x4", "{2,1,0}", "{2,1,0}"))
    same(found, _CUBE, "a result in row-major order")
