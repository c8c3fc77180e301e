"""What importing torch does where torch has an accelerator of its own."""

from __future__ import annotations

import os
import subprocess
import sys

SOURCE = """
import warnings
import torch
# As in a build with CUDA, on a machine with a GPU.
torch.version.cuda, torch.cuda.device_count = "13.0", lambda: 1
from pjrt_bridge.torch_interop.device import autoload, use
from pjrt_bridge.torch_interop.named_device import naming
autoload.register()
print(naming.name())
torch.compile(lambda x: x + 1, backend="pjrt", options={"plugin": "cpu"})(torch.ones(3))
print(naming.name())
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    use("cpu")
print(naming.name(), *(str(item.message) for item in caught))
"""


def test_torchs_own_accelerator_stays_until_the_user_asks_for_the_device() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SOURCE],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not ran.returncode, ran.stderr
    before, compiled, *after = ran.stdout.splitlines()
    assert (before, compiled) == ("None", "None")
    assert after == [
        "pjrt from now on torch computes gradients on device 'pjrt' and the host only: it has one "
        "accelerator in a process; use another process for CUDA's"
    ]
