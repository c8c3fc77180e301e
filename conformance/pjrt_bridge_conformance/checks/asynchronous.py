"""Work that goes on by itself: events, readiness, many executions at once, many threads."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge_conformance import raw
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import ADD, equal, require, same
from pjrt_bridge_conformance.numerics import build

ASYNC = Group("async")

_X = np.arange(64, dtype=np.float32)
_TURNS = 150
_ON_READY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def _slow(b: Builder, x: Value) -> Value:
    """Products of matrices, one after the other; of ones it makes ones."""
    scale = b.full(x.shape, 1 / x.shape[0], x.dtype)
    (_, result) = b.while_(
        [b.constant(0, "int32"), x],
        lambda c: b.compare(c[0], b.constant(_TURNS, "int32"), "LT"),
        lambda c: [
            b.add(c[0], b.constant(1, "int32")),
            b.multiply(b.dot_general(c[1], c[1], lhs_contract=(1,), rhs_contract=(0,)), scale),
        ],
    )
    return result


_ONES = np.ones((16, 16), np.float32)


def _together(count: int, work: Callable[[int], None]) -> None:
    """Run a function of a number on so many threads; the first exception goes on."""
    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(work, index) for index in range(count)]:
            future.result()


@ASYNC.check
def result_becomes_ready(context: Context) -> None:
    """The event of a result becomes ready, stays it, and the result is right then."""
    with context.client.compile(build(_slow, [_ONES])) as executable:
        (result,) = executable(_ONES)
        event = result.ready_event()
        event.wait()
        for _ in range(3):
            require(event.ready, "an event that was waited for is not ready")
            event.wait()
        require(result.ready(), "a result that was waited for is not ready")
        same(result.to_numpy(), _ONES, "products of ones")


@ASYNC.check
def execution_event(context: Context) -> None:
    """When the event of an execution has come, its results are there or about to be."""
    with context.client.compile(build(_slow, [_ONES])) as executable:
        (result,), event = executable.submit([context.client.put(_ONES)])
        event.wait()
        require(event.ready, "the event of an execution that was waited for is not ready")
        same(result.to_numpy(), _ONES, "products of ones")


@ASYNC.check
def event_without_error(context: Context) -> None:
    """The event of what went well has no error."""
    client = context.client
    raw.need(client.api, "Event_Error")
    with client.put(_X) as buffer, buffer.held() as pointer:
        event = client.api.call("Buffer_ReadyEvent", buffer=pointer).event
        try:
            client.api.call("Event_Await", event=event)
            client.api.call("Event_Error", event=event)
        finally:
            client.api.call("Event_Destroy", event=event)


@ASYNC.each(["ready", "running"])
def callback(context: Context, state: str) -> None:
    """A callback of an event is called once, without an error, also where it came too late."""
    client = context.client
    api = client.api
    raw.need(api, "Event_OnReady")
    called: list[tuple[int | None, int | None]] = []
    done = threading.Event()

    def on_ready(error: int | None, argument: int | None) -> None:
        called.append((error, argument))
        done.set()

    function = _ON_READY(on_ready)
    with client.compile(build(_slow, [_ONES])) as executable:
        (result,) = executable(_ONES)
        if state == "ready":
            result.block_until_ready()
        with result.held() as pointer:
            event = api.call("Buffer_ReadyEvent", buffer=pointer).event
            try:
                api.call(
                    "Event_OnReady",
                    event=event,
                    callback=ctypes.cast(function, ctypes.c_void_p).value,
                    user_arg=4711,
                )
                require(done.wait(30), "the callback was not called within 30 s")
            finally:
                api.call("Event_Destroy", event=event)
    equal(called, [(None, 4711)], "calls (error, user_arg)")


@ASYNC.check
def chain(context: Context) -> None:
    """A hundred executions, each on the result of the one before, without a wait between."""
    x = np.zeros(64, np.float32)
    with context.client.compile(ADD) as executable:
        result, one = context.client.put(x), context.client.put(x + 1)
        for _ in range(100):
            (result,) = executable.execute([result, one])
        same(result.to_numpy(), x + 100, "a hundred sums")


@ASYNC.check
def in_flight(context: Context) -> None:
    """Hundreds of executions can be under way, and each gives its own result."""
    with context.client.compile(ADD) as executable:
        results = [executable(_X, np.full(64, n, np.float32))[0] for n in range(300)]
        for number, result in enumerate(results):
            same(result.to_numpy(), _X + np.float32(number), f"execution {number}")


@ASYNC.check
def slow_and_fast(context: Context) -> None:
    """What depends on a slow program waits for it."""
    client = context.client
    with client.compile(build(_slow, [_ONES])) as slow:
        double = client.compile(build(lambda b, x: b.add(x, x), [_ONES]))
        (first,) = slow(_ONES)
        (second,) = double.execute([first])
        first.delete()
        same(second.to_numpy(), _ONES + 1, "twice the products of ones")
        double.close()


@ASYNC.check
def read_while_running(context: Context) -> None:
    """Threads that read a result before it is there wait, and all read the same."""
    with context.client.compile(build(_slow, [_ONES])) as executable:
        (result,) = executable(_ONES)
        _together(4, lambda index: same(result.to_numpy(), _ONES, f"thread {index}"))


@ASYNC.check
def awaited(context: Context) -> None:
    """Results can be awaited in asyncio."""

    async def main() -> None:
        results = [executable(_ONES)[0] for _ in range(4)]
        for result in await asyncio.gather(*map(_awaited, results)):
            same(result.to_numpy(), _ONES, "an awaited result")

    with context.client.compile(build(_slow, [_ONES])) as executable:
        asyncio.run(main())


async def _awaited(result):  # type: ignore[no-untyped-def]
    return await result


@ASYNC.check
def threads_execute(context: Context) -> None:
    """Eight threads run one executable at once, each with its own arguments."""

    def work(index: int) -> None:
        for turn in range(20):
            y = np.full(64, 100 * index + turn, np.float32)
            (result,) = executable(_X, y)
            same(result.to_numpy(), _X + y, f"thread {index}, turn {turn}")

    with context.client.compile(ADD) as executable:
        _together(8, work)


@ASYNC.check
def threads_compile(context: Context) -> None:
    """Several threads compile and run programs of their own at once."""

    def work(index: int) -> None:
        program = build(lambda b, x: b.add(x, b.full((64,), index, "float32")), [_X])
        with context.client.compile(program) as executable:
            (result,) = executable(_X)
            same(result.to_numpy(), _X + np.float32(index), f"thread {index}")

    _together(4, work)


@ASYNC.check
def threads_put(context: Context) -> None:
    """Several threads put and read buffers at once."""
    client = context.client

    def work(index: int) -> None:
        for turn in range(50):
            x = np.full(1000, 100 * index + turn, np.int32)
            with client.put(x, copy=True) as buffer:
                same(buffer.to_numpy(), x, f"thread {index}, turn {turn}")

    _together(8, work)


@ASYNC.check
def threads_of_clients(context: Context) -> None:
    """Several threads use clients of their own at once."""

    def work(client: Client) -> None:
        with client, client.compile(ADD) as executable:
            for _ in range(10):
                (result,) = executable(_X, _X)
                same(result.to_numpy(), _X + _X, "a sum")

    clients = [context.second() for _ in range(2)]
    _together(2, lambda index: work(clients[index]))


@ASYNC.check
def without_results(context: Context) -> None:
    """A program without results ends, and its event says so."""
    text = "module { func.func @main(%a: tensor<64xf32>) { return } }"
    with context.client.compile(text) as executable:
        results, event = executable.submit([context.client.put(_X)])
        equal(results, (), "results")
        event.wait()
