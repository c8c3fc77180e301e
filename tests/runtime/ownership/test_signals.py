"""Threads of plugins do not handle signals, and Python's do."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from pjrt_bridge.registry import load
from pjrt_bridge.runtime import Client, Plugin
from pjrt_bridge.runtime.ownership.signals import answered, blocked
from pjrt_bridge_reference import pjrt_bridge_plugins
from tests.plugins import run_python

# oneDNN's products of float32 write over the heap where they are interrupted by a signal.
THREADS = """
import os
import signal
import threading
import numpy as np
from tests import programs
from tests.plugins import cpu_plugin

def masks():
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/status") as status:
            lines = [line for line in status if line.startswith("SigBlk:")]
        found[int(thread)] = int(lines[0].split()[1], 16)
    return found

def is_blocked(mask, number):
    return bool(mask >> (number - 1) & 1)

before = masks()
client = cpu_plugin().client({"cpu_device_count": 2})
add = client.compile(programs.ADD)
ones = np.ones(64, np.float32)
for _ in range(3):
    add(ones, ones)
python = {thread.native_id for thread in threading.enumerate()}
started = {thread: mask for thread, mask in masks().items() if thread not in {*before, *python}}
asked = (signal.SIGINT, signal.SIGALRM, signal.SIGPROF, signal.SIGTERM, signal.SIGRTMAX)
print(len(started) > 1)
print(all(is_blocked(mask, number) for mask in started.values() for number in asked))
print(any(is_blocked(mask, signal.SIGSEGV) for mask in started.values()))
print(masks()[os.getpid()] == before[os.getpid()])
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs the masks of threads")
def test_threads_of_a_plugin_handle_no_signals() -> None:
    assert run_python(THREADS).split() == ["True", "True", "False", "True"]


def mask() -> set[int]:
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_is_blocked() -> None:
    before = mask()
    with blocked():
        inside = mask()
        with answered():
            assert mask() == before
            with blocked():
                assert mask() == inside
            assert mask() == before
        assert mask() == inside
    assert mask() == before
    assert {signal.SIGINT, signal.SIGPROF} <= inside
    assert not {signal.SIGSEGV, signal.SIGFPE} & inside
    with answered():
        assert mask() == before


def test_a_signal_waits_for_the_end_of_a_block() -> None:
    heard: list[int] = []
    handler = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        with blocked():
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            assert not heard
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, handler)


class Asked:
    """A store that Ctrl-C finds waiting."""

    def get(self, key: str, timeout: float) -> bytes:
        signal.raise_signal(signal.SIGINT)
        raise TimeoutError

    def try_get(self, key: str) -> bytes | None:
        return None

    def put(self, key: str, value: bytes) -> None: ...


def test_ctrl_c_while_a_client_waits_for_other_processes() -> None:
    before = mask()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    reference: Plugin = load(pjrt_bridge_plugins())
    try:
        with pytest.raises(KeyboardInterrupt):
            Client(reference, {"node_id": 0, "num_nodes": 2}, store=Asked())
    finally:
        signal.signal(signal.SIGINT, handler)
    assert mask() == before
