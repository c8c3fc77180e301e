"""The ways on torch's device run and are measured."""

from __future__ import annotations

from tests import forked

# In a process of its own, as users run it: PyTorch makes threads for all devices in the first
# backward pass of a process, and another test's may have been one with fewer devices.
SOURCE = """
from benchmarks.device import measure, operator_ways, ways
from pjrt_bridge.torch_interop.device import use

use("cpu", cpu_device_count=2)
found = measure(operator_ways(), 1) | measure(ways(8, 4, 2), 1)
assert len(found) == 9, found
assert all(time > 0 for time in found.values()), found
"""


def test_every_way() -> None:
    done = forked.parent(forked.TORCH).run(SOURCE, [], timeout=240)
    assert done.returncode == 0, done.stderr
