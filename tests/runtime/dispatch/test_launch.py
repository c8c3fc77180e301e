"""Waiting for a launch from several threads, and asking about launches meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from pjrt_bridge.errors import Internal
from pjrt_bridge.runtime import Client, native
from tests import programs
from tests.conftest import Census
from tests.forked import TORCH
from tests.plugins import require_dispatcher, run_python
from tests.runtime.dispatch.launching import Launcher
from tests.runtime.ownership.pending import Pending

require_dispatcher()

ONES = torch.ones(64)


def finish_in_threads(
    finish: Callable[[], None], count: int
) -> tuple[list[str], Callable[[], None]]:
    """What became of the calls that have ended, and what waits for the others."""
    ended: list[str] = []

    def work() -> None:
        try:
            finish()
        except Exception as error:
            ended.append(type(error).__name__)
        else:
            ended.append("")

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()

    def join() -> None:
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()

    return ended, join


def test_every_thread_waits_for_the_end(no_leaks: Census, client: Client) -> None:
    assert native.module is not None
    value = Pending(client, np.full(64, 5, np.float32))
    with client.compile(programs.ADD) as executable:
        launch = Launcher(executable, [value.buffer]).start(ONES)
        ended, join = finish_in_threads(launch.finish, 4)
        time.sleep(0.1)
        assert not ended
        assert native.module.busy()
        value.arrive()
        join()
        assert ended == [""] * 4
        assert launch.tensors()[0].tolist() == [6.0] * 64
        launch.finish()


def test_every_thread_is_told_of_a_failure(client: Client) -> None:
    census = Census()
    value = Pending(client, np.full(64, 5, np.float32))
    with client.compile(programs.ADD) as executable:
        launch = Launcher(executable, [value.buffer]).start(ONES)
        ended, join = finish_in_threads(launch.finish, 3)
        time.sleep(0.1)
        assert not ended
        value.fail("it broke")
        join()
        assert sorted(ended) == [Internal.__name__, "RuntimeError", "RuntimeError"]
        with pytest.raises(RuntimeError, match="the launch failed"):
            launch.finish()
        with pytest.raises(RuntimeError, match="not finished"):
            launch.tensors()
        del launch, value
    census.check()


ASKED = """
import threading, torch
from pjrt_bridge.runtime import native
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.runtime.ownership import pending
from tests.runtime.dispatch.launching import FailingFunction, Launcher

found, entry = {}, plans._entry
hooks = {name: None for name in ("Event_IsReady", "Event_Destroy")}

def hooked(api, name):
    if name not in hooks:
        return entry(api, name)
    def call(args):
        if hooks[name] is not None and threading.current_thread() is threading.main_thread():
            hooks[name](args)
    found[name] = FailingFunction(api, name, call)
    found[name].active = True
    return found[name].entry

plans._entry = hooked
client = cpu_plugin().client({"cpu_device_count": 1})
add = Launcher(client.compile(programs.ADD))
ones = torch.ones(64)
launches = [add.start(ones, ones) for _ in range(3)]
"""


def test_an_event_that_is_asked_about_stays() -> None:
    """Asking lets other threads run, and one of them may wait for the same launch."""
    run_python(
        ASKED
        + """
finished = []

def finish_elsewhere(args):
    hooks["Event_IsReady"] = None
    def work():
        launches[-1].finish()
        finished.append(launches[-1].tensors())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.2)
    seen.append((thread.is_alive(), list(finished)))
    threads.append(thread)

seen, threads = [], []
hooks["Event_IsReady"] = finish_elsewhere
native.module.busy()
assert seen == [(True, [])], seen
threads[0].join(20)
assert finished[0][0].tolist() == [2.0] * 64
""",
        imported=[TORCH],
    )


def test_launches_that_end_while_they_are_asked_about() -> None:
    run_python(
        ASKED
        + """
def drop_all(args):
    hooks["Event_IsReady"] = None
    launches.clear()
    seen.append(len(pending.queue))

seen = []
hooks["Event_IsReady"] = drop_all
native.module.busy()
# They were not given back before the plugin had answered.
assert seen == [0], seen
assert len(pending.queue) == 3
""",
        imported=[TORCH],
    )
