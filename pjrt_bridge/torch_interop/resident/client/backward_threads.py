"""The threads of torch's engine of autograd: one for each device, made in the first backward pass.

The engine asks once in a process how many devices there are. Backward passes on a device without a
thread end in an internal error of torch.
"""

from __future__ import annotations

import torch

from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.user_warnings import warn

_devices = 1
_threads = 1
_asked = False


def count() -> int:
    """The number of devices; called by the engine."""
    global _asked
    _asked = True
    return _devices


def start(devices: int) -> None:
    """Have the engine make its threads, if it has not yet.

    Args:
        devices: of the client, which was chosen just now.
    """
    global _asked, _devices, _threads
    _devices = max(_devices, devices)
    if _devices <= _threads:
        return
    _asked = False
    with torch.inference_mode(mode=False), torch.enable_grad():
        # On the host, where an engine that has its threads does not ask again.
        torch.autograd.backward(torch.zeros((), device="cpu", requires_grad=True).sin())
    if _asked:
        _threads = _devices


def has(index: int) -> bool:
    """Whether backward passes are possible on a device with this index."""
    return index < _threads


def need(index: int) -> None:
    """Warn where the engine has no thread for a device.

    Args:
        index: of the device, which is used for the first time.
    """
    if not has(index):
        warn(
            f"a backward pass ran before device {NAME!r} was used, and PyTorch made no thread for "
            f"'{NAME}:{index}': backward passes there end in an error of PyTorch; call "
            "pjrt_bridge.torch_interop.device.use(...) at the start of the program"
        )
