"""Creating, closing and dropping: clients, buffers, executables and events in any order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np

from pjrt_bridge.errors import BufferUnavailable, Closed, PjrtBridgeError
from pjrt_bridge.runtime import Client, live_handles
from pjrt_bridge_conformance import raw
from pjrt_bridge_conformance.check import Group, Needs
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import ADD, equal, refused, require, same, works
from pjrt_bridge_conformance.outcomes import Fail

OPENING = Group("lifecycle", needs=Needs.LIBRARY)
LIFECYCLE = Group("lifecycle")

_X = np.arange(64, dtype=np.float32)
_PARTS = ("argument", "executable", "result", "event")


@OPENING.check
def client(context: Context) -> None:
    """A client can be created, and has devices."""
    _ = context.client


@LIFECYCLE.check
def reopen(context: Context) -> None:
    """A client can be created, used and closed many times."""
    for _ in range(4):
        with context.second() as client:
            works(client, "a client was closed")


@LIFECYCLE.check
def two_clients(context: Context) -> None:
    """Two clients work side by side, and one works on when the other is closed."""
    with context.second() as other:
        works(other, "another client was made")
        works(context.client, "another client was made")
    works(context.client, "another client was closed")


@LIFECYCLE.check
def close_twice(context: Context) -> None:
    """What is closed twice is closed once."""
    client = context.second()
    executable = client.compile(ADD)
    buffer = client.put(_X)
    for _ in range(2):
        buffer.delete()
        executable.close()
        client.close()
    works(context.client, "everything was closed twice")


@LIFECYCLE.check
def use_after_close(context: Context) -> None:
    """What belongs to a closed client raises a clear exception."""
    client = context.second()
    executable, buffer = client.compile(ADD), client.put(_X)
    client.close()
    uses: dict[str, Callable[[], object]] = {
        "put": lambda: client.put(_X),
        "compile": lambda: client.compile(ADD),
        "execute": lambda: executable.execute([buffer, buffer]),
        "to_numpy": lambda: buffer.to_numpy(),
    }
    for name, use in uses.items():
        try:
            use()
        except (Closed, BufferUnavailable):
            continue
        except PjrtBridgeError as error:
            raise Fail(f"{name} after close: {type(error).__name__}: {error}") from error
        raise Fail(f"{name} after close succeeded")


@LIFECYCLE.each(["-".join(order) for order in permutations(_PARTS)])
def drop(context: Context, order: str) -> None:
    """Argument, executable, result and event may be dropped in any order."""
    client = context.client
    executable, argument = client.compile(ADD), client.put(_X)
    (result,), event = executable.submit([argument, argument])
    ends = {
        "argument": argument.delete,
        "executable": executable.close,
        "result": result.delete,
        "event": event.close,
    }
    for name in order.split("-"):
        ends[name]()


@LIFECYCLE.check
def client_first(context: Context) -> None:
    """A client that is closed while its program runs ends well."""
    client = context.second()
    executable = client.compile(ADD)
    result = client.put(_X)
    for _ in range(50):
        (result,) = executable(result, _X)
    client.close()


@LIFECYCLE.check
def argument_dropped(context: Context) -> None:
    """An argument that is dropped while a program reads it stays until it was read."""
    client = context.client
    with client.compile(ADD) as executable:
        for _ in range(20):
            argument = client.put(_X, copy=True)
            (result,) = executable.execute([argument, argument])
            argument.delete()
            same(result.to_numpy(), _X + _X, "a sum")


@LIFECYCLE.check
def executable_dropped(context: Context) -> None:
    """Results of an executable that was closed right after its start are right."""
    for _ in range(5):
        executable = context.client.compile(ADD)
        (result,) = executable(_X, _X)
        executable.close()
        same(result.to_numpy(), _X + _X, "a sum")


@LIFECYCLE.check
def buffer_delete(context: Context) -> None:
    """A buffer that was deleted says so, and can be destroyed."""
    client = context.client
    with client.put(_X) as buffer, buffer.held() as pointer:
        equal(client.api.call("Buffer_IsDeleted", buffer=pointer).is_deleted, False, "is_deleted")
        client.api.call("Buffer_Delete", buffer=pointer)
        equal(client.api.call("Buffer_IsDeleted", buffer=pointer).is_deleted, True, "is_deleted")
        client.api.call("Buffer_Delete", buffer=pointer)


@LIFECYCLE.check
def read_deleted(context: Context) -> None:
    """Reading a deleted buffer is an error, at the latest when its event is awaited."""
    client = context.client
    api = client.api
    target = np.zeros(64, np.float32)

    def read(pointer: int) -> None:
        copied = api.call(
            "Buffer_ToHostBuffer",
            src=pointer,
            dst=target.ctypes.data,
            dst_size=target.nbytes,
        )
        raw.finish(api, copied.event)

    with client.put(_X) as buffer, buffer.held() as pointer:
        api.call("Buffer_Delete", buffer=pointer)
        refused(lambda: read(pointer), "reading a deleted buffer")
    works(client, "reading a deleted buffer")


@LIFECYCLE.check
def execute_deleted(context: Context) -> None:
    """Executing with a deleted buffer is an error, at the latest when the result is read."""
    client = context.client
    with client.compile(ADD) as executable, client.put(_X, copy=True) as buffer:
        with buffer.held() as pointer:
            client.api.call("Buffer_Delete", buffer=pointer)
        refused(
            lambda: executable.execute([buffer, buffer])[0].to_numpy(),
            "executing with a deleted buffer",
        )
    works(client, "executing with a deleted buffer")


@LIFECYCLE.check
def event_dropped(context: Context) -> None:
    """An event may be destroyed before what it stands for has ended."""
    client = context.client
    with client.compile(ADD) as executable:
        for _ in range(20):
            (result,), event = executable.submit([client.put(_X), client.put(_X)])
            event.close()
            result.ready_event().close()
            same(result.to_numpy(), _X + _X, "a sum")


@LIFECYCLE.check
def many_buffers(context: Context) -> None:
    """Thousands of buffers live at a time, each with its own values."""
    client = context.client
    buffers = [client.put(np.full(3, index, np.int32), copy=True) for index in range(2000)]
    for index in range(0, 2000, 97):
        same(buffers[index].to_numpy(), np.full(3, index, np.int32), f"buffer {index}")


@LIFECYCLE.check
def many_executables(context: Context) -> None:
    """Many executables live at a time, each with its own program."""
    client = context.client
    made = [client.compile(_adds(number)) for number in range(10)]
    for number, executable in enumerate(made):
        (result,) = executable(np.int32(1))
        same(result.to_numpy(), np.array(1 + number, np.int32), f"executable {number}")
        executable.close()


@LIFECYCLE.check
def no_leaks(context: Context) -> None:
    """After use the bridge owns as many objects of the plugin as before."""
    client = context.client
    before = live_handles()
    _use(client)
    equal(live_handles(), before, "objects alive")


def _use(client: Client) -> None:
    with client.compile(ADD) as executable:
        argument = client.put(_X)
        (result,), event = executable.submit([argument, argument])
        event.wait()
        same(result.to_numpy(), _X + _X, "a sum")


@LIFECYCLE.check
def exit_in_use(context: Context) -> None:
    """A process that ends with everything open and under way ends with status 0."""
    require(context.elsewhere(_leave_open) == 32, "the process gave another answer")


def _leave_open(context: Context) -> int:
    client = context.client
    executable = client.compile(ADD)
    _OPEN.extend([client, executable])
    result = client.put(_X)
    for _ in range(32):
        (result,) = executable(result, _X)
        _OPEN.append(result)
    return len(_OPEN) - 2


_OPEN: list[object] = []


def _adds(number: int) -> str:
    return f"""
    module @adds_{number} {{ func.func @main(%a: tensor<i32>) -> tensor<i32> {{
      %c = stablehlo.constant dense<{number}> : tensor<i32>
      %0 = stablehlo.add %a, %c : tensor<i32>
      return %0 : tensor<i32> }} }}
    """
