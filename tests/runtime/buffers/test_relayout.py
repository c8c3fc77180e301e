"""Custom layouts on plugins that treat them otherwise than XLA's CPU plugin does."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pjrt_bridge.abi.functions import FUNCTIONS
from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.abi.structs import STRUCTS, Struct
from pjrt_bridge.abi.values import read_int64s
from pjrt_bridge.errors import ErrorCode, Unimplemented
from pjrt_bridge.runtime import Client, Layout, Plugin
from pjrt_bridge.runtime.buffers.relayout import LayoutHandling
from pjrt_bridge.stablehlo.program.program import Program
from tests import programs
from tests.faults.replaced import Replaced, Replacement

BASE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
IDENTITY = Program.parse(programs.identity("tensor<2x3x4xf32>"))
ORDERS = [(0, 1, 2), (1, 2, 0), (2, 0, 1)]


def args_of(function: str) -> Struct:
    found = FUNCTIONS[function]
    assert found is not None
    return found


@contextmanager
def client_of(plugin: Plugin, **functions: Replacement) -> Iterator[Client]:
    made = Replaced(plugin.api.address, functions).plugin("changed")
    with Client(made, {"cpu_device_count": 1}) as client:
        yield client


def reorders(table: Replaced, args: Any) -> int | None:
    """Bring the host's elements, by their strides, into the order of the layout."""
    if not args.device_layout:
        return table.real("Client_BufferFromHostBuffer", args)
    dims = read_int64s(args.dims, args.num_dims)
    layout = STRUCTS["PJRT_Buffer_MemoryLayout"].ctype.from_address(args.device_layout).layout
    order = read_int64s(layout.minor_to_major, layout.minor_to_major_size)
    steps = read_int64s(args.byte_strides, args.num_byte_strides)
    if not steps:
        steps = tuple(4 * step for step in Layout.default(len(dims)).strides(dims))
    interface = {"version": 3, "shape": dims, "strides": steps, "data": (args.data, True)}
    host = np.asarray(SimpleNamespace(__array_interface__=interface | {"typestr": "<f4"}))
    dense = np.ascontiguousarray(host.transpose(order[::-1]))
    given = args.data, args.byte_strides, args.num_byte_strides
    args.data, args.byte_strides, args.num_byte_strides = dense.ctypes.data, None, 0
    args.host_buffer_semantics = 0
    try:
        return table.real("Client_BufferFromHostBuffer", args)
    finally:
        args.data, args.byte_strides, args.num_byte_strides = given


def reads_row_major(table: Replaced, args: Any) -> int | None:
    """Write a buffer's elements to the host in row-major order, whatever its layout."""
    asked = args_of("Buffer_Dimensions").new(buffer=args.src)
    assert table.real("Buffer_Dimensions", asked) is None
    dims = read_int64s(asked.dims, asked.num_dims)
    told = args_of("Buffer_GetMemoryLayout").new(buffer=args.src)
    assert table.real("Buffer_GetMemoryLayout", told) is None
    order = read_int64s(told.layout.layout.minor_to_major, len(dims))
    error = table.real("Buffer_ToHostBuffer", args)
    if error or Layout(order).row_major:
        return error
    assert table.real("Event_Await", args_of("Event_Await").new(event=args.event)) is None
    slowest = order[::-1]
    memory: Any = (ctypes.c_char * args.dst_size).from_address(args.dst)
    raw = np.ndarray([dims[dim] for dim in slowest], np.float32, memory)
    raw.reshape(-1)[:] = raw.transpose(np.argsort(slowest)).copy().reshape(-1)
    return None


def refuses(table: Replaced, args: Any) -> int | None:
    program = STRUCTS["PJRT_Program"].ctype.from_address(args.program)
    if b"layout_mode" in ctypes.string_at(program.code, program.code_size):
        raise Status(ErrorCode.UNIMPLEMENTED, "no layouts here")
    return table.real("Client_Compile", args)


@pytest.mark.parametrize("order", ORDERS)
def test_a_plugin_that_reorders(plugin: Plugin, order: tuple[int, ...]) -> None:
    with client_of(plugin, Client_BufferFromHostBuffer=reorders) as client:
        assert client.layout_handling is LayoutHandling.REORDERS
        executable = client.compile(IDENTITY.with_layouts({0: order}))
        for array in (BASE, BASE[:, ::-1], np.asfortranarray(BASE)):
            buffer = client.put(array, layout=order)
            np.testing.assert_array_equal(buffer.to_numpy(), array)
            (result,) = executable(array)
            np.testing.assert_array_equal(result.to_numpy(), array)


@pytest.mark.parametrize("order", ORDERS)
def test_a_plugin_that_reads_in_row_major_order(plugin: Plugin, order: tuple[int, ...]) -> None:
    with client_of(plugin, Buffer_ToHostBuffer=reads_row_major) as client:
        assert not client.reads_in_memory_order
        assert client.layout_handling is LayoutHandling.LABELS
        (result,) = client.compile(IDENTITY.with_layouts(results={0: order}))(BASE)
        assert result.layout == Layout(order)
        np.testing.assert_array_equal(result.to_numpy(), BASE)
        np.testing.assert_array_equal(client.put(BASE, layout=order).to_numpy(), BASE)


def test_a_plugin_without_custom_layouts(plugin: Plugin) -> None:
    with client_of(plugin, Client_Compile=refuses) as client:
        assert client.layout_handling is LayoutHandling.NONE
        assert client.reads_in_memory_order
        with pytest.raises(Unimplemented, match=r"layout \{0,1,2\} of a buffer: no program can"):
            client.put(BASE, layout=(0, 1, 2))
        np.testing.assert_array_equal(client.put(BASE, layout=(2, 1, 0)).to_numpy(), BASE)
