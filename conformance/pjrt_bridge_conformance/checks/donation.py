"""Donation: programs that take over the memory of their arguments."""

from __future__ import annotations

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.errors import BufferUnavailable, PjrtBridgeError
from pjrt_bridge.runtime import BufferState, Client, Executable
from pjrt_bridge.stablehlo import Builder, TensorType
from pjrt_bridge_conformance import raw
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import equal, require, same, works
from pjrt_bridge_conformance.outcomes import Fail, Unsupported

DONATION = Group("donation")

_X = np.arange(64, dtype=np.float32)
_TYPE = TensorType((64,), dtypes.of("float32"))
_FORMS = ("must", "may")


def _add(client: Client, form: str) -> Executable:
    """The sum of two arguments, the first of which is donated."""
    builder = Builder([_TYPE, _TYPE])
    builder.donate(0, 0 if form == "must" else None)
    return client.compile(builder.finish([builder.add(*builder.parameters)]))


@DONATION.each(_FORMS)
def value(context: Context, form: str) -> None:
    """The result of a donated argument is right, and what was not donated stays."""
    client = context.client
    kept = client.put(_X, copy=True)
    with _add(client, form) as executable:
        (result,) = executable.execute([client.put(_X, copy=True), kept])
        same(result.to_numpy(), _X + _X, "a sum")
        same(kept.to_numpy(), _X, "the other argument")


@DONATION.each(_FORMS)
def consumed(context: Context, form: str) -> None:
    """An argument that was donated is gone, or was not used and stays."""
    client = context.client
    given = client.put(_X, copy=True)
    with _add(client, form) as executable:
        (result,) = executable.execute([given, client.put(_X)])
        if given.state is BufferState.LIVE:
            same(given.to_numpy(), _X, "an argument that was not donated after all")
            raise Unsupported("the plugin leaves donated arguments alone")
        same(result.to_numpy(), _X + _X, "a sum")
        try:
            executable.execute([given, client.put(_X)])
        except BufferUnavailable:
            return
        except PjrtBridgeError as error:
            raise Fail(f"executing with a donated buffer: {error}") from error
        raise Fail("executing with a donated buffer succeeded")


@DONATION.check
def in_place(context: Context) -> None:
    """The result of an argument that must be donated lies where the argument lay."""
    client = context.client
    raw.need(client.api, "Buffer_OpaqueDeviceMemoryDataPointer")
    with _add(client, "must") as executable:
        (first,) = executable(_X, _X)
        address = first.address
        (second,) = executable.execute([first, client.put(_X)])
        if second.address != address:
            raise Unsupported("the result has memory of its own")
        same(second.to_numpy(), 3 * _X, "a sum in place")


@DONATION.each(_FORMS)
def kept(context: Context, form: str) -> None:
    """An argument that may not be donated in this call stays, and the result is right."""
    client = context.client
    given = client.put(_X, copy=True)
    with _add(client, form) as executable:
        (result,) = executable.execute([given, client.put(_X)], donate=())
        same(result.to_numpy(), _X + _X, "a sum")
        equal(given.state, BufferState.LIVE, "state of the argument")
        same(given.to_numpy(), _X, "the argument")


@DONATION.each(_FORMS)
def chain(context: Context, form: str) -> None:
    """A value can be handed on through donations a hundred times."""
    client = context.client
    one = client.put(np.ones(64, np.float32))
    value = client.put(_X, copy=True)
    with _add(client, form) as executable:
        for _ in range(100):
            (value,) = executable.execute([value, one])
        same(value.to_numpy(), _X + 100, "a hundred sums")


@DONATION.check
def host_memory(context: Context) -> None:
    """Host memory that was only lent is not written, also where its buffer is donated."""
    client = context.client
    raw_memory = np.zeros(_X.nbytes + 64, np.uint8)
    start = -raw_memory.__array_interface__["data"][0] % 64
    lent = raw_memory[start : start + _X.nbytes].view(np.float32)
    lent[:] = _X
    with _add(client, "must") as executable:
        (result,) = executable.execute([client.put(lent), client.put(_X)])
        same(result.to_numpy(), _X + _X, "a sum")
    same(lent, _X, "memory that was lent")


@DONATION.check
def viewed(context: Context) -> None:
    """A buffer that is viewed from outside is not overwritten by a donation."""
    client = context.client
    if not client.shares_host_memory:
        raise Unsupported("buffers are not in host memory")
    given = client.put(_X, copy=True)
    view = np.asarray(given)
    with _add(client, "must") as executable:
        (result,) = executable.execute([given, client.put(_X)])
        same(result.to_numpy(), _X + _X, "a sum")
        same(view.copy(), _X, "a view of the argument")


@DONATION.check
def two_at_once(context: Context) -> None:
    """Two arguments may take each other's places."""
    builder = Builder([_TYPE, _TYPE])
    builder.donate(0, 1)
    builder.donate(1, 0)
    x, y = builder.parameters
    program = builder.finish([builder.negate(y), builder.negate(x)])
    with context.client.compile(program) as executable:
        a, b = (context.client.put(v, copy=True) for v in (_X + 1, _X + 2))
        first, second = executable.execute([a, b])
        same(first.to_numpy(), -(_X + 2), "the first result")
        same(second.to_numpy(), -(_X + 1), "the second result")


@DONATION.check
def memory_stats(context: Context) -> None:
    """The compiler counts donated bytes as shared between arguments and results."""
    with _add(context.client, "must") as executable:
        stats = executable.memory_stats()
        require(
            stats.aliased in (0, _X.nbytes),
            f"{stats.aliased} bytes are shared, expected {_X.nbytes} (or 0, where none are)",
        )


@DONATION.check
def failed_call(context: Context) -> None:
    """The client works on after a donated argument was passed twice."""
    client = context.client
    given = client.put(_X, copy=True)
    with _add(client, "must") as executable:
        try:
            executable.execute([given, given])
        except PjrtBridgeError:
            works(client, "a donated argument was passed twice")
            return
        raise Fail("a buffer that is donated and read by one call was accepted")
