"""What plugins still use of executions that nobody waits for, and a queue that does not take it."""

from __future__ import annotations

import pytest

from tests.forked import TORCH
from tests.plugins import require_dispatcher, run_python

require_dispatcher()

COMMON = """
import collections, gc, sys, time, torch
from pjrt_bridge.runtime import native
from pjrt_bridge.runtime.ownership import pending
from tests.runtime.dispatch.launching import Launcher
from tests.runtime.ownership.pending import Pending

client = cpu_plugin().client({"cpu_device_count": 1})
executable = client.compile(programs.ADD)
ones = torch.ones(64)

class Refusing(collections.deque):
    full = True

    def append(self, item):
        if self.full:
            raise MemoryError
        super().append(item)

def wait_until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)
"""
LEFT = """
queue = pending.queue = Refusing()
value = Pending(client, np.full(64, 5, np.float32))
launcher = Launcher(executable, [value.buffer])
before = native.module.live()
argument = torch.ones(64)
address = argument.data_ptr()
launcher.start(argument)
argument.set_(torch.zeros(64))
scratch = [torch.full((64,), -1.0) for _ in range(50)]
assert all(tensor.data_ptr() != address for tensor in scratch)
assert native.module.busy()
assert not queue
"""


@pytest.mark.parametrize(
    "then",
    [
        # Still refused: the module itself asks until all is over.
        "value.arrive(); wait_until(lambda: not native.module.busy())",
        # It is tried again with what comes next.
        "launcher.start(ones); queue.full = False; launcher.start(ones); assert len(queue) == 3\n"
        "value.arrive(); [wait_until(item.over) for item in queue]; queue.clear()",
        # Or at the exit of the process.
        "queue.full = False; assert native.module.busy() in (True, False); assert len(queue) == 1\n"
        "value.arrive(); [wait_until(item.over) for item in queue]; queue.clear()",
    ],
    ids=["never", "later", "exit"],
)
def test_a_queue_that_takes_nothing(then: str) -> None:
    run_python(
        COMMON + LEFT + then + "\nassert native.module.live() == before, native.module.live()",
        imported=[TORCH],
    )


def test_an_exit_while_the_queue_takes_nothing() -> None:
    run_python(
        COMMON
        + """
pending.queue = Refusing()
big, slow = torch.ones(512, 512), Launcher(client.compile(programs.SLOW))
slow.start(big)
""",
        imported=[TORCH],
    )


def test_launches_that_go_at_the_limit_of_recursion() -> None:
    run_python(
        COMMON
        + """
value = Pending(client, np.full(64, 5, np.float32))
launcher = Launcher(executable, [value.buffer])
before = native.module.live()

def drop(depth, launches):
    if depth:
        drop(depth - 1, launches)
    else:
        launches.clear()

limit = sys.getrecursionlimit()
for depth in range(limit - 30, limit):
    try:
        drop(depth, [launcher.start(ones)])
    except RecursionError:
        pass
value.arrive()
wait_until(lambda: not native.module.busy() and all(item.over() for item in pending.queue))
pending.end_finished(patient=True)
assert native.module.live() == before
""",
        imported=[TORCH],
    )


def test_what_is_dropped_from_the_queue_comes_back() -> None:
    """The plugin uses it still."""
    run_python(
        COMMON
        + """
value = Pending(client, np.full(64, 5, np.float32))
launcher = Launcher(executable, [value.buffer])
before = native.module.live()
launcher.start(ones)
assert len(pending.queue) == 1
pending.queue.clear()
assert len(pending.queue) == 1
value.arrive()
wait_until(pending.queue[0].over)
pending.queue.clear()
assert not pending.queue
assert native.module.live() == before
""",
        imported=[TORCH],
    )
