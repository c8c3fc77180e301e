"""Torch calls this when it is imported, to learn the device's name; nothing else is loaded.

The rest is loaded with the first tensor of the device. A process has one such device: where another
package brings one, it is left to that package, unless the user calls `device.use`. The same holds
where torch itself has an accelerator, such as a GPU of CUDA: torch computes gradients for one
accelerator in a process (at::getAccelerator), which is this device as soon as it has a name.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from pjrt_bridge.torch_interop.named_device import first_use, naming

_GROUP = "torch.backends"


def register() -> None:
    """Name the device; called by torch through the entry point."""
    others = [item for item in entry_points(group=_GROUP) if item.name != naming.NAME]
    if not others and naming.name() is None and not naming.has_own_accelerator():
        naming.give_name(_load_module)
        first_use.expect(_register_all, naming.is_available)


def _load_module() -> Any:
    return import_module("pjrt_bridge.torch_interop.device.accelerator.torch_module").MODULE


def _register_all() -> None:
    import_module("pjrt_bridge.torch_interop.device.registration").register()
