"""Lifetimes: whatever is dropped, in any order and on any thread, nothing crashes or leaks.

Every test ends with the number of plugin objects that it began with.
"""

import gc
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge.errors import BufferUnavailable, Closed
from pjrt_bridge.runtime import Buffer, Client, Executable, Plugin, live_handles
from pjrt_bridge.runtime.ownership.handles import Handle, pin_all
from pjrt_bridge.runtime.ownership.process import process
from tests import programs
from tests.conftest import Census
from tests.counting import calls, resident, settled
from tests.runtime.arrays import aligned, misaligned
from tests.runtime.ownership.pending import Pending

ONES = np.ones(64, np.float32)
VIEWS: list[Callable[[Buffer], Any]] = [np.asarray, np.from_dlpack, torch.from_dlpack]


class Life:
    """Makes, uses, closes and drops objects as told; all values that can be read are right.

    A step is (what, which, which other): numbers that choose among what there is at the moment.
    """

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self.clients: list[Client] = []
        self.executables: list[Executable] = []
        self.buffers: list[tuple[Buffer, int]] = []
        self.views: list[tuple[Any, int]] = []
        self.steps: list[Callable[[int, int], None]] = [
            *[self.compile, self.put, self.execute, self.execute, self.look, self.read],
            *[self.make_client, self.close, self.drop, self.drop, self.drop],
        ]

    def run(self, steps: list[tuple[int, int, int]]) -> None:
        self.make_client(0, 0)
        for what, which, other in steps:
            with suppress(Closed, BufferUnavailable):
                self.steps[what % len(self.steps)](which, other)
        for view, value in self.views:
            assert bool((view == value).all())

    def make_client(self, which: int, other: int) -> None:
        self.clients.append(Client(self.plugin, {"cpu_device_count": 1}))

    def compile(self, which: int, other: int) -> None:
        if self.clients:
            program = programs.ALIASED_ADD if other % 2 else programs.ADD
            self.executables.append(pick(self.clients, which).compile(program))

    def put(self, which: int, other: int) -> None:
        if self.clients:
            value = other % 10
            data = (aligned if which % 2 else misaligned)(np.full(64, value, np.float32))
            self.buffers.append((pick(self.clients, which).put(data), value))

    def execute(self, which: int, other: int) -> None:
        if self.executables and self.buffers:
            executable = pick(self.executables, which)
            buffer, value = pick(self.buffers, other)
            if buffer.client is executable.client:
                (result,) = executable.execute([buffer, buffer.client.put(ONES)])
                self.buffers.append((result, value + 1))

    def look(self, which: int, other: int) -> None:
        if self.buffers:
            buffer, value = pick(self.buffers, which)
            self.views.append((pick(VIEWS, other)(buffer), value))

    def read(self, which: int, other: int) -> None:
        if self.buffers:
            buffer, value = pick(self.buffers, which)
            assert (buffer.to_numpy() == value).all()

    def close(self, which: int, other: int) -> None:
        everything = [*self.clients, *self.executables, *(buffer for buffer, _ in self.buffers)]
        if everything:
            pick(everything, which).__exit__()

    def drop(self, which: int, other: int) -> None:
        lists: list[list[Any]] = [self.clients, self.executables, self.buffers, self.views]
        if objects := pick(lists, other):
            del objects[which % len(objects)]


def pick(objects: list[Any], which: int) -> Any:
    return objects[which % len(objects)]


STEPS = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 99), st.integers(0, 99)), max_size=60)


def live(plugin: Plugin, steps: list[tuple[int, int, int]]) -> None:
    """A life that leaves nothing behind."""
    census = Census()
    Life(plugin).run(steps)
    census.check()


@settings(max_examples=10)
@given(steps=STEPS)
def test_any_life(plugin: Plugin, steps: list[tuple[int, int, int]]) -> None:
    live(plugin, steps)


@pytest.mark.slow
@settings(max_examples=200)
@given(steps=STEPS)
def test_any_of_many_lives(plugin: Plugin, steps: list[tuple[int, int, int]]) -> None:
    live(plugin, steps)


def test_eight_lives_at_once(no_leaks: Census, plugin: Plugin) -> None:
    def live(seed: int) -> None:
        numbers = random.Random(seed)
        Life(plugin).run([tuple(numbers.randrange(100) for _ in range(3)) for _ in range(200)])  # type: ignore[misc]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(live, range(8)))


def family(plugin: Plugin) -> list[Any]:
    """One object of each kind, each holding on to others."""
    client = Client(plugin, {"cpu_device_count": 1})
    executable = client.compile(programs.ADD)
    shared, copied = client.put(aligned(ONES)), client.put(ONES, copy=True)
    (result,), event = executable.submit([shared, copied])
    objects = [client, executable, shared, copied, result, event, result.__dlpack__()]
    objects += [view(buffer) for view in VIEWS for buffer in (shared, copied, result)]
    objects += [copied.ready_event(), client.devices[0], client.memories[0], [result]]
    objects.append(objects[-1])
    return objects


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 16))]
)
def test_dropping_in_any_order(no_leaks: Census, plugin: Plugin, seed: int) -> None:
    order = random.Random(seed)
    objects = family(plugin) + family(plugin)
    order.shuffle(objects)
    while objects:
        dropped = objects.pop()
        if order.random() < 0.3 and hasattr(dropped, "close"):
            dropped.close()
        del dropped
        if order.random() < 0.1:
            gc.collect()


def test_dropping_on_eight_threads(no_leaks: Census, plugin: Plugin) -> None:
    def drop(seed: int) -> None:
        order = random.Random(seed)
        for _ in range(3):
            objects = family(plugin)
            order.shuffle(objects)
            while objects:
                with lock:
                    common.append(objects.pop())
                    mine = common.pop(order.randrange(len(common)))
                if order.random() < 0.1 and hasattr(mine, "close"):
                    mine.close()
                del mine
                if order.random() < 0.02:
                    gc.collect()

    common: list[Any] = []
    lock = threading.Lock()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(drop, range(8)))
    assert common == []


def test_cycles_that_the_collector_finds(no_leaks: Census, plugin: Plugin) -> None:
    """Finalizers run wherever the collector starts, also inside the bridge's own locks."""
    threshold = gc.get_threshold()
    gc.set_threshold(5)
    try:
        client = plugin.client({"cpu_device_count": 1})
        add = client.compile(programs.ADD)

        def work(_: int) -> None:
            for _ in range(50):
                cycle: list[Any] = [client.put(ONES), client.put(ONES, copy=True)]
                cycle += [add.execute(cycle[:2])[0], cycle, np.asarray(cycle[0])]

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    finally:
        gc.set_threshold(*threshold)


def test_closing_a_client_that_others_use(no_leaks: Census, plugin: Plugin) -> None:
    def use(client: Client, add: Executable) -> None:
        while True:
            try:
                buffer = client.put(ONES, copy=True)
                (result,) = add.execute([buffer, client.put(ONES)])
                assert (np.asarray(result) == 2).all()
                assert (client.compile(programs.CONSTANT)()[0].to_numpy() == [3, 4]).all()
            except (Closed, BufferUnavailable):
                return

    for _ in range(8):
        client = Client(plugin, {"cpu_device_count": 1})
        add = client.compile(programs.ADD)
        threads = [threading.Thread(target=use, args=(client, add)) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.03)
        client.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def test_views_outlive_a_closed_client(no_leaks: Census, plugin: Plugin) -> None:
    client = Client(plugin, {"cpu_device_count": 1})
    (result,) = client.compile(programs.ADD)(ONES, ONES)
    views = [view(result) for view in VIEWS]
    before = settled()
    client.close()
    # The client ends with the last view of its memory.
    assert live_handles()["Client"] == before["Client"]
    del client, result
    while views:
        assert bool((views.pop() == 2).all())


def test_closing_a_client_while_a_program_runs(no_leaks: Census, plugin: Plugin) -> None:
    client = Client(plugin, {"cpu_device_count": 1})
    argument = aligned(np.ones((512, 512), np.float32))
    (result,), event = client.compile(programs.SLOW).submit([client.put(argument)])
    client.close()
    with pytest.raises(BufferUnavailable):
        result.to_numpy()
    with pytest.raises(Closed):
        event.wait()


def test_memory_is_lent_until_the_program_has_read_it(no_leaks: Census, client: Client) -> None:
    """The argument is dropped while the program waits to read it."""
    add = client.compile(programs.ADD)
    pending = Pending(client, ONES)
    argument = client.put(aligned(ONES + 4))
    (result,) = add.execute([argument, pending.buffer])
    argument.delete()
    del argument
    gc.collect()
    for _ in range(20):
        client.put(aligned(ONES * 0))
    pending.arrive()
    assert (result.to_numpy() == 6).all()


def test_results_that_nobody_takes(no_leaks: Census, client: Client) -> None:
    slow = client.compile(programs.SLOW)
    argument = client.put(np.ones((512, 512), np.float32))
    for _ in range(3):
        slow.execute([argument])


def test_many_shared_buffers_make_no_more_work(no_leaks: Census, client: Client) -> None:
    def put() -> None:
        for _ in range(200):
            client.put(shared)

    shared = aligned(ONES)
    put()
    alone = min(calls(put) for _ in range(5))
    alive = [client.put(shared) for _ in range(2000)]
    assert min(calls(put) for _ in range(5)) < 1.5 * alone
    assert len(alive) == 2000


def test_a_handle_counts_and_pins(client: Client) -> None:
    buffer = client.put(ONES)
    handle = buffer.handle
    handle.pin()
    handle.pin()
    buffer.delete()
    assert handle.released
    count = live_handles()["Buffer"]
    handle.unpin()
    assert live_handles()["Buffer"] == count
    handle.unpin()
    assert live_handles().get("Buffer", 0) == count - 1
    with pytest.raises(Closed, match="this Buffer was closed"):
        handle.pin()
    assert isinstance(handle, Handle)


def test_handles_are_pinned_while_no_other_thread_counts(client: Client) -> None:
    buffer = client.put(ONES)
    handle = buffer.handle
    pinned = threading.Event()

    def pin() -> None:
        assert pin_all([handle]) is None
        pinned.set()

    thread = threading.Thread(target=pin)
    with process.lock:
        thread.start()
        assert not pinned.wait(0.2)
        assert handle._pins == 0
    thread.join()
    assert handle._pins == 1
    handle.unpin()
    buffer.delete()


# -- long runs -------------------------------------------------------------------------------------


def test_ten_thousand_calls_in_the_same_memory(no_leaks: Census, client: Client) -> None:
    add = client.compile(programs.ADD)
    a, tensor = aligned(ONES), torch.ones(64)

    def call() -> None:
        (result,) = add(a, tensor)
        torch.from_dlpack(result)
        (again,) = add.execute([result, client.put(misaligned(ONES))])
        assert again.to_numpy()[0] == 3

    for _ in range(1000):
        call()
    alive, before = settled(), resident()
    for _ in range(10_000):
        call()
    assert live_handles() == alive
    assert resident() - before < 4 << 20


def test_eight_threads_on_one_executable(no_leaks: Census, client: Client) -> None:
    add = client.compile(programs.ADD)

    def work(thread: int) -> None:
        for step in range(200):
            value = thread * 1000 + step
            a, b = np.full(64, value, np.float32), np.full(64, step, np.float32)
            (result,) = add(a, b)
            assert (result.to_numpy() == value + step).all()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
