"""An exception from outside, at any moment: nothing is lost, and nothing ends too early."""

import sys

import pytest

from tests.plugins import run_python

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="CPython 3.13 makes a pending call that adds itself again 32 times and no more",
)

QUEUE = """
import weakref
import numpy as np
from pjrt_bridge.runtime import live_handles
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.runtime.ownership import pending
from pjrt_bridge.runtime.ownership.deferred import drain
from tests import programs
from tests.plugins import cpu_plugin
from tests.runtime.arrays import aligned
from tests.runtime.ownership.interrupts import Interrupts
from tests.runtime.ownership.pending import Pending

plans.enabled = DIRECT
client = cpu_plugin().client({"cpu_device_count": 1})
add = client.compile(programs.ADD)
ones = np.ones(64, np.float32)
add(ones, ones)
add(ones, ones)
# Where the end of a lease begins nothing can be done about an exception.
interrupts = Interrupts(lambda frame: frame.f_code.co_name == "defer" and frame.f_lasti < 8)
before = live_handles()

def lend(late):
    # A program waits for one argument, and reads the memory of the other one then.
    memory = aligned(ones)
    add.execute([client.put(memory), late.buffer])
    return weakref.ref(memory)
"""


@pytest.mark.parametrize("direct", [False, True])
def test_the_queue_of_what_plugins_have_not_ended(direct: bool) -> None:
    printed = run_python(
        QUEUE.replace("DIRECT", str(direct))
        + """
late = [Pending(client, ones) for _ in range(3)]
lent = [lend(one) for one in late]
items, number = set(pending.queue), 0
assert len(items) >= 3
while interrupts.run(lambda: drain(patient=True), number):
    assert set(pending.queue) == items, interrupts.where
    assert all(memory() is not None for memory in lent), interrupts.where
    number += 1
for one in late:
    one.arrive()
print(number > 10)
"""
    )
    assert printed == "True"


@pytest.mark.parametrize("direct", [False, True])
def test_the_queue_of_what_plugins_have_ended(direct: bool) -> None:
    printed = run_python(
        QUEUE.replace("DIRECT", str(direct))
        + """
number, interrupted = 0, True
while interrupted:
    late = Pending(client, ones)
    lent = lend(late)
    late.arrive()
    while not all(item.over() for item in pending.queue):
        pass
    interrupted = interrupts.run(lambda: drain(patient=True), number)
    del late
    assert live_handles() == before, interrupts.where
    assert not pending.queue and lent() is None, interrupts.where
    number += 1
print(number > 10)
"""
    )
    assert printed == "True"


WORLD = """
import gc
import time
import numpy as np
from pjrt_bridge.runtime.compile.interruptible import interruptible
from pjrt_bridge.runtime.ownership.handles import roots
from tests import programs
from tests.faults.world import World
from tests.runtime.arrays import aligned
from tests.runtime.ownership.interrupts import Interrupts

# Where an end begins nothing can be done about an exception: what would do it did not begin.
ENDS = {"__exit__", "unpin", "unpin_all", "keep_until", "release_soon", "defer"}

def forbidden(frame):
    # The table is in Python here, and an exception in it would not leave the callback.
    code = frame.f_code
    if "tests/faults" in code.co_filename or "abi/implement" in code.co_filename:
        return True
    return code.co_name in ENDS and frame.f_lasti < 8

def pinned():
    # What was interrupted while it waited for a compilation leaves that to end by itself.
    deadline = time.monotonic() + 2
    while True:
        handles = [handle for root in roots for handle in (root, *(root.children or ()))]
        found = [handle.kind for handle in handles if handle._pins]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.002)

interrupts = Interrupts(forbidden)
world = World()
client, add, donor = world.client, world.add, world.client.compile(programs.DONOR_ADD)
blob = add.serialize()
ones = aligned(np.ones(64, np.float32))
buffer = client.put(ones)

def deleted(made):
    made.delete()

for _ in range(3):
    operation()
# The collections of `rest` and `settled` look at what comes from here on alone.
gc.freeze()
world.rest()
before, number = world.alive(), 0
while interrupts.run(operation, number):
    world.rest()
    where = f"{number}: {interrupts.where}"
    complaint = world.settled(before)
    assert not complaint, f"{where}: {complaint}"
    assert not pinned(), f"{where}: {pinned()}"
    assert not world.table.ledger.misuse, f"{where}: {world.table.ledger.misuse}"
    number += STEP
operation()
print(number > 20)
"""


@pytest.mark.parametrize(
    ("operation", "step"),
    [
        ("client.put(ones)", 1),
        ("deleted(client.put(ones, copy=True))", 1),
        ("buffer.copy_to(client.devices[0])", 1),
        ("buffer.to_numpy()", 1),
        ("np.asarray(client.put(ones)).sum()", 1),
        ("buffer.ready_event().wait()", 1),
        ("add.execute([buffer, buffer])", 1),
        ("donor.execute([client.put(ones, copy=True), buffer])", 1),
        ("add.submit([buffer, buffer])[1].wait()", 1),
        ("interruptible(lambda: client.put(ones, copy=True))", 1),
        ("client.compile(programs.ADD)", 17),
        ("client.deserialize(blob).close()", 5),
    ],
)
def test_operations(operation: str, step: int) -> None:
    source = WORLD.replace("STEP", str(step))
    first = f"operation = lambda: {operation}\n"
    assert run_python(first + source, timeout=250) == "True"
