"""Values that are not there yet: asking, waiting, awaiting, and failures that come late."""

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest

from pjrt_bridge.errors import Closed, Internal
from pjrt_bridge.runtime import Client
from tests import programs
from tests.conftest import Census
from tests.runtime.ownership.pending import Pending

DATA = np.arange(64, dtype=np.float32)


def test_a_buffer_without_values(no_leaks: Census, client: Client) -> None:
    pending = Pending(client, DATA)
    assert not pending.buffer.ready()
    event = pending.buffer.ready_event()
    assert not event.ready
    pending.arrive()
    event.wait()
    assert event.ready
    assert pending.buffer.ready()
    assert pending.buffer.block_until_ready() is pending.buffer
    np.testing.assert_array_equal(pending.buffer.to_numpy(), DATA)


def test_execute_does_not_wait(no_leaks: Census, client: Client) -> None:
    add = client.compile(programs.ADD)
    pending = Pending(client, DATA)
    (result,), event = add.submit([pending.buffer, pending.buffer])
    (chained,) = add.execute([result, result])
    assert not result.ready()
    assert not event.ready
    pending.arrive()
    np.testing.assert_array_equal(chained.to_numpy(), 4 * DATA)
    event.wait()


READERS: dict[str, Any] = {
    "to_numpy": lambda buffer: buffer.to_numpy(),
    "view": np.asarray,
    "dlpack": np.from_dlpack,
    "address": lambda buffer: buffer.address,
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_wait_and_let_other_threads_run(
    no_leaks: Census, client: Client, reader: str
) -> None:
    pending = Pending(client, DATA)
    thread = threading.Timer(0.05, pending.arrive)
    thread.start()
    found = READERS[reader](pending.buffer)
    assert pending.buffer.ready()
    if isinstance(found, np.ndarray):
        np.testing.assert_array_equal(found, DATA)
    thread.join()


def test_a_slow_program(no_leaks: Census, client: Client) -> None:
    slow = client.compile(programs.SLOW)
    argument = client.put(np.ones((512, 512), np.float32))
    (result,) = slow.execute([argument])
    argument.delete()
    assert not result.ready()
    assert (result.to_numpy() == 1).all()


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", READERS)
def test_reading_what_failed(no_leaks: Census, client: Client, reader: str) -> None:
    pending = Pending(client, DATA)
    pending.fail("the wire broke")
    for _ in range(2):
        with pytest.raises(Internal, match=r"the wire broke.*plugin 'cpu'"):
            READERS[reader](pending.buffer)
    assert pending.buffer.ready()


def test_a_computation_that_fails_late(no_leaks: Census, client: Client) -> None:
    add = client.compile(programs.ADD)
    pending = Pending(client, DATA)
    (result,), event = add.submit([pending.buffer, pending.buffer])
    (chained,) = add.execute([result, result])
    pending.fail("the wire broke")
    for failed in (result, chained):
        for use in (failed.block_until_ready, failed.to_numpy, failed.__dlpack__):
            with pytest.raises(Internal, match="the wire broke"):
                use()
    for _ in range(2):
        with pytest.raises(Internal, match="the wire broke"):
            event.wait()
    copy = result.copy_to(client.devices[0])
    with pytest.raises(Internal, match="the wire broke"):
        copy.to_numpy()
    good = client.put(DATA)
    np.testing.assert_array_equal(add.execute([good, good])[0].to_numpy(), 2 * DATA)


def test_a_program_without_results_that_fails(no_leaks: Census, client: Client) -> None:
    sink = client.compile(programs.SINK)
    pending = Pending(client, DATA)
    pending.fail("the wire broke")
    with pytest.raises(Internal, match="the wire broke"):
        sink.execute([pending.buffer])


def test_a_transfer_that_was_given_up(no_leaks: Census, client: Client) -> None:
    pending = Pending(client, DATA)
    pending.close()
    with pytest.raises(Exception, match="PJRT_Event_Await"):
        pending.buffer.to_numpy()


# -- asyncio ---------------------------------------------------------------------------------------


def test_awaiting_a_buffer(no_leaks: Census, client: Client) -> None:
    async def main() -> int:
        pending = Pending(client, DATA)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            for _ in range(3):
                ticks += 1
                await asyncio.sleep(0.01)
            pending.arrive()

        ticking = asyncio.create_task(tick())
        found = await pending.buffer
        await ticking
        assert found is pending.buffer
        return ticks

    assert asyncio.run(main()) == 3


def test_awaiting_events_and_failures(no_leaks: Census, client: Client) -> None:
    async def main() -> None:
        good, bad = Pending(client, DATA), Pending(client, DATA)
        event = good.buffer.ready_event()
        good.arrive()
        await event
        bad.fail("the wire broke")
        with pytest.raises(Internal, match="the wire broke"):
            await bad.buffer

    asyncio.run(main())


def test_giving_up_waiting(no_leaks: Census, client: Client) -> None:
    async def main() -> None:
        pending = Pending(client, DATA)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(wait(pending))), 0.02)
        pending.arrive()

    async def wait(pending: Pending) -> None:
        await pending.buffer

    asyncio.run(main())


def test_a_closed_event(no_leaks: Census, client: Client) -> None:
    pending = Pending(client, DATA)
    event = pending.buffer.ready_event()
    event.close()
    event.close()
    for use in (event.wait, lambda: event.ready):
        with pytest.raises(Closed, match="this Event was closed"):
            use()
    pending.arrive()


def test_closing_an_event_that_is_waited_for(no_leaks: Census, client: Client) -> None:
    pending = Pending(client, DATA)
    event = pending.buffer.ready_event()
    waiter = threading.Thread(target=event.wait)
    waiter.start()
    time.sleep(0.02)
    event.close()
    pending.arrive()
    waiter.join(10)
    assert not waiter.is_alive()
