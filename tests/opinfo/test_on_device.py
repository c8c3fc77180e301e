"""The sweep over torch's device: what is right, what needed the host, what is wrong."""

from __future__ import annotations

import json

from tests import forked

SOURCE = """
import json
from tests.opinfo import on_device
outcomes = on_device.run(["_sigmoid_", "_nonzero_", "_randn_"])
print(json.dumps(outcomes.kinds))
"""


def test_some_operators() -> None:
    done = forked.parent(forked.TORCH).run(SOURCE, [], timeout=240)
    assert done.returncode == 0, done.stderr
    kinds = json.loads(done.stdout.splitlines()[-1])
    assert kinds["sigmoid"] == kinds["randn"] == "device"
    # How many there are depends on the data.
    assert kinds["nonzero"] == "host"
    assert "wrong" not in kinds.values()
