"""Threads that help with calls (`native/team.c`): which calls wake one."""

from __future__ import annotations

import pytest

from pjrt_bridge_cpu.aten import processor
from tests.plugins import run_python

PROGRAM = """
import os
import time
import torch

def switches():
    # How often threads other than this one went to sleep.
    found = {}
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            with open(f"/proc/self/task/{thread}/status") as file:
                lines = dict(line.split(":", 1) for line in file)
            found[thread] = int(lines["voluntary_ctxt_switches"])
    return found

def wakes(size, calls):
    x = torch.ones(size)
    compiled(x)
    before = {}
    while before != (now := switches()):
        before = now
        time.sleep(0.05)
    for _ in range(calls):
        compiled(x)
    time.sleep(0.05)
    return switches() != before

compiled = torch.compile(lambda x: x * 3 + 1, backend="pjrt", dynamic=False)
with torch.no_grad():
    print(wakes(1 << 17, 1), wakes(1 << 20, 1), wakes(1 << 17, 40))
"""


@pytest.mark.skipif(processor.cores() < 2, reason="each helper needs a core")
def test_short_work_wakes_no_thread_but_what_goes_on_does() -> None:
    assert run_python(PROGRAM).split() == ["False", "True", "True"]
