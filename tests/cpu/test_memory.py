"""Memory between calls: what is freed stays with the process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from pjrt_bridge_cpu.memory import keep_freed

if sys.argv[1] == "keep":
    keep_freed()
found, size = [], 6 << 20
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [b'.' * size for _ in range(3)]
    del blocks
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(found[2:]))
"""

IN_A_THREAD = """
import resource, sys, threading
from pjrt_bridge_cpu.memory import keep_freed

keep_freed()

def run():
    # What is left of the thread's first part has no room for the block of a round.
    kept = [b'.' * (24 << 20) for _ in range(2)]
    found = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        block = b'.' * (24 << 20)
        del block
        found.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
    print(min(found[2:]))

thread = threading.Thread(target=run)
thread.start()
thread.join()
"""

PAGES = 3 * (6 << 20) // 4096
"""That a round writes to."""

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="another C library"
)


def faults(how: str, script: str = SCRIPT, **environment: str) -> int:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", script, how],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_pages_of_the_call_before_are_taken_again() -> None:
    assert faults("leave") > PAGES // 3
    assert faults("keep") < PAGES // 20


def test_a_thread_keeps_what_its_first_part_has_no_room_for() -> None:
    pages = (24 << 20) // 4096
    own = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
    assert faults("leave", IN_A_THREAD, **own) > pages // 3
    assert faults("keep", IN_A_THREAD) < pages // 20


def test_thresholds_of_the_user_hold() -> None:
    own = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    assert faults("keep", **own) >= PAGES * 9 // 10


def test_it_can_be_turned_off() -> None:
    assert faults("keep", PJRT_BRIDGE_MALLOC="off") > PAGES // 3


def test_clients_of_other_plugins_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import pjrt_bridge
    import pjrt_bridge_cpu
    from pjrt_bridge_cpu import memory

    kept: list[None] = []
    monkeypatch.setattr(memory, "keep_freed", lambda: kept.append(None))
    cpu = pjrt_bridge.client("cpu")
    reference = pjrt_bridge.client("reference")
    pjrt_bridge_cpu.pjrt_bridge_kernels(reference.plugin, reference)
    assert not kept
    pjrt_bridge_cpu.pjrt_bridge_kernels(cpu.plugin, cpu)
    assert kept == [None]
