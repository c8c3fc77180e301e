"""Ctrl-C while a program runs: seen at once, and nothing is lost."""

from __future__ import annotations

import os

import pytest

from tests import forked
from tests.plugins import require_dispatcher

require_dispatcher()

PROGRAM = """
import gc, os, signal, sys, threading, time
import torch
from pjrt_bridge import live_handles
from pjrt_bridge.runtime.ownership import exit

# Jobs in the background of a shell ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

def powers(x, n):
    def unfinished(i, y):
        return i < n

    def step(i, y):
        return i + 1, torch.tanh(y @ y)

    return torch._higher_order_ops.while_loop(unfinished, step, (torch.zeros_like(n), x))[1]

compiled = torch.compile(powers, backend="pjrt", options={"fallback": "error"}, dynamic=False)
x = torch.randn(300, 300) / 20

def call(n):
    return compiled(x, torch.tensor(n))

def took(n):
    begun = time.monotonic()
    call(n)
    return time.monotonic() - begun

took(1)
took(1)
n = 50
# Long enough that it still runs when the interrupt was seen.
while took(n) < 1:
    n *= 2
expected = powers(x, torch.tensor(20))

def interrupt():
    while not exit.are_plugins_at_work():
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGINT)

for _ in range(2):
    while exit.are_plugins_at_work():
        time.sleep(0.005)
    threading.Thread(target=interrupt).start()
    try:
        call(n)
    except KeyboardInterrupt:
        print("seen" if exit.are_plugins_at_work() else "late")
    else:
        print("not interrupted")
# What goes on neither harms later calls nor stays.
torch.testing.assert_close(call(20), expected)
before = live_handles()
end = time.monotonic() + 120
while live_handles().get("Event", 0) and time.monotonic() < end:
    call(20)
    time.sleep(0.1)
gc.collect()
print(live_handles().get("Event", 0))
"""


def run(program: str) -> list[str]:
    """The words that a process prints which runs it."""
    done = forked.parent(forked.TORCH).run(program, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("dispatch", ["c", "python"])
def test_a_call_is_interrupted_and_settled_later(
    dispatch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_DISPATCH", dispatch)
    assert run(PROGRAM) == ["seen", "seen", "0"]


HANDLERS = """
import signal, threading, time
import torch

compiled = torch.compile(
    lambda x: (x @ x).tanh() @ x, backend="pjrt", options={"fallback": "error"}
)
x = torch.randn(1200, 1200) / 30
expected = compiled(x)
heard = 0

def hear(*_):
    global heard
    heard += 1

# A handler that raises nothing: calls go on, with whatever the signal interrupts.
signal.signal(signal.SIGALRM, hear)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
for _ in range(30):
    assert torch.equal(compiled(x), expected)
signal.setitimer(signal.ITIMER_REAL, 0)
print(heard > 10)
"""


def test_signals_that_raise_nothing_change_nothing() -> None:
    assert run(HANDLERS) == ["True"]


OTHER_THREADS = """
import ctypes, os, signal, threading, time
import torch

compiled = torch.compile(
    lambda x: (x @ x).tanh() @ x, backend="pjrt", options={"fallback": "error"}
)
x = torch.randn(1200, 1200) / 30
expected = compiled(x)
signal.signal(signal.SIGALRM, lambda *_: None)
python = {thread.native_id for thread in threading.enumerate()}
# The number of the system call differs between processors.
tgkill, over, sent = ctypes.CDLL(None).tgkill, threading.Event(), 0

def send():
    global sent
    while not over.wait(0.001):
        for thread in {int(name) for name in os.listdir("/proc/self/task")} - python:
            sent += tgkill(os.getpid(), thread, signal.SIGALRM) == 0

sender = threading.Thread(target=send)
sender.start()
python.add(sender.native_id)
for _ in range(20):
    assert torch.equal(compiled(x), expected)
over.set()
sender.join()
print(sent > 10)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs the system's threads")
def test_signals_to_threads_of_the_plugin_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # Products are XLA's, whose threads write over the heap where one handles a signal.
    monkeypatch.setenv("PJRT_BRIDGE_ATEN", "off")
    assert run(OTHER_THREADS) == ["True"]
