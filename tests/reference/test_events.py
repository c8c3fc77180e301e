"""Events: calls that return before their results are there, callbacks, errors of values."""

import asyncio
import ctypes
import threading
from itertools import pairwise

import numpy as np
import pytest

from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.errors import (
    Cancelled,
    FailedPrecondition,
    Internal,
    InvalidArgument,
)
from pjrt_bridge.extensions import Profiler
from pjrt_bridge.profiling import xspace
from pjrt_bridge.runtime import Client, CompileOptions, Plugin
from pjrt_bridge_reference.slots import ERRORS
from tests import programs
from tests.reference.test_execute import ONES, execute


def test_a_call_returns_before_the_results_are_there(slow: Client) -> None:
    add = slow.compile(programs.ADD)
    (result,), event = add.submit([slow.put(ONES), slow.put(ONES)])
    (more,) = add.execute([result, result])
    assert not event.ready
    assert not more.ready()
    event.wait()
    assert np.asarray(more).sum() == 256
    asyncio.run(awaited(add.submit([more, more])[1]))


async def awaited(event):  # type: ignore[no-untyped-def]
    await event


def test_devices_work_side_by_side(slow: Client) -> None:
    executables = [
        slow.compile(programs.ADD, options=CompileOptions(device_assignment=[[id]]))
        for id in (0, 1)
    ]
    arguments = [[slow.put(ONES, device)] * 2 for device in slow.devices]
    with slow.extension(Profiler).session() as session:
        results = [
            executable.execute(buffers)[0]
            for executable, buffers in zip(executables, arguments, strict=True)
            for _ in range(3)
        ]
        for result in results:
            result.block_until_ready()
    (plane,) = xspace.decode(session.data)
    one, other = (line.spans for line in plane.lines if line.name.startswith("reference device"))
    for spans in (one, other):
        assert len(spans) == 3
        assert all(first.end <= second.start for first, second in pairwise(spans))
    assert any(a.start < b.end and b.start < a.end for a in one for b in other)


def test_everything_may_be_dropped_while_a_program_runs(slow: Client) -> None:
    add = slow.compile(programs.ADD)
    argument = slow.put(ONES)
    results = add.execute([argument, argument])
    add.close()
    argument.delete()
    (result,) = results
    assert np.asarray(result).sum() == 128


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def test_callbacks_of_events(slow: Client, plugin: Plugin) -> None:
    call = plugin.api.call
    told, came = [], threading.Event()

    def on_ready(error: int | None, argument: int | None) -> None:
        found = None if error is None else plugin.api.error(error, "Event_OnReady")
        told.append((type(found), argument, threading.current_thread().name))
        came.set()

    callback = CALLBACK(on_ready)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    (result,) = slow.compile(programs.ADD)(ONES, ONES)
    with result.held() as pointer:
        event = call("Buffer_ReadyEvent", buffer=pointer).event
    with pytest.raises(FailedPrecondition, match="not ready"):
        call("Event_Error", event=event)
    call("Event_OnReady", event=event, callback=address, user_arg=7)
    # The event may go before its callback comes.
    call("Event_Destroy", event=event)
    assert came.wait(5)
    assert told == [(type(None), 7, "reference device 0")]
    with result.held() as pointer:
        event = call("Buffer_ReadyEvent", buffer=pointer).event
    call("Event_OnReady", event=event, callback=address, user_arg=8)
    assert told[1][:2] == (type(None), 8), "of an event that is over it comes at once"
    call("Event_Error", event=event)
    call("Event_Destroy", event=event)
    result.delete()
    came.clear()
    event = failed(slow)
    with pytest.raises(InvalidArgument, match="callback is NULL"):
        call("Event_OnReady", event=event)
    call("Event_OnReady", event=event, callback=address, user_arg=9)
    assert came.wait(5)
    assert told[2][:2] == (Cancelled, 9)
    call("Event_Destroy", event=event)
    assert ERRORS.count() == 0


def failed(client: Client) -> int:
    """An event that ends with CANCELLED."""
    manager = client.api.call(
        "Client_CreateBuffersForAsyncHostToDevice",
        client=client.handle.pointer,
        shape_specs=STRUCTS["PJRT_ShapeSpec"].new(element_type=11),
        num_shape_specs=1,
        memory=client.memories[0].pointer,
    ).transfer_manager
    prefix = "AsyncHostToDeviceTransferManager_"
    call = client.api.call
    buffer = call(prefix + "RetrieveBuffer", transfer_manager=manager).buffer_out
    event = call("Buffer_ReadyEvent", buffer=buffer).event
    call("Buffer_Destroy", buffer=buffer)
    call(prefix + "Destroy", transfer_manager=manager)
    return int(event)


def test_errors_travel_with_the_values(slow: Client) -> None:
    call = slow.api.call
    manager = call(
        "Client_CreateBuffersForAsyncHostToDevice",
        client=slow.handle.pointer,
        shape_specs=STRUCTS["PJRT_ShapeSpec"].new(element_type=11),
        num_shape_specs=1,
        memory=slow.memories[0].pointer,
    ).transfer_manager
    prefix = "AsyncHostToDeviceTransferManager_"
    bad = call(prefix + "RetrieveBuffer", transfer_manager=manager).buffer_out
    add = slow.compile(programs.elementwise("tensor<f32>"))
    one = slow.put(np.float32(1))
    ((late,),) = execute(slow, add._loaded.pointer, [[one.handle.pointer, bad]], 1)
    ((later,),) = execute(slow, add._loaded.pointer, [[late, one.handle.pointer]], 1)
    event = call("Buffer_ReadyEvent", buffer=later).event
    assert not call("Event_IsReady", event=event).is_ready
    call(
        prefix + "SetBufferError",
        transfer_manager=manager,
        error_code=13,
        error_message=b"the wire broke",
        error_message_size=14,
    )
    for _ in range(2):
        with pytest.raises(Internal, match="argument 0: argument 1: the wire broke"):
            call("Event_Await", event=event)
    for buffer in (bad, late, later):
        call("Buffer_Destroy", buffer=buffer)
    call("Event_Destroy", event=event)
    call(prefix + "Destroy", transfer_manager=manager)
