"""`torch.device("pjrt")`: tensors that live on a plugin's device.

A resident tensor (`torch_interop/resident/`) is a plain torch tensor whose storage holds a buffer.
Views are torch's own. Every other operator (`operators`) becomes a program (`programs`), at once or
with others (`recording`), or is PyTorch's on copies. `accelerator` is what torch asks of a device,
and `registration` tells it of all of this.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from pjrt_bridge.report.data import GraphReport
    from pjrt_bridge.runtime import Buffer, Client

__all__ = ["buffer_of", "eager_graphs", "tensor_of", "use"]

_RESIDENT = "pjrt_bridge.torch_interop.resident"


def use(plugin: Any = None, /, **options: Any) -> Client:
    """Choose the client that `torch.device("pjrt")` stands for, before the first tensor is made.

    Without it, the first use of the device takes the plugin that `PJRT_BRIDGE_PLUGIN` names, else
    the best that was found.

    Args:
        plugin: a name that `pjrt-bridge plugins` lists, a path, or a PluginSpec.
        options: create options of the plugin.

    Raises:
        DeviceError: another client was chosen before, and tensors may be on it, or another package
            has torch's device for others.
        PluginNotFound, OptionError: see `pjrt_bridge.registry.client`.
    """
    # Torch imports this package when it is imported itself: nothing else is loaded then.
    import_module(f"{__name__}.registration").register()
    client: Client = import_module(f"{_RESIDENT}.client.chosen").use(plugin, **options)
    return client


def buffer_of(tensor: torch.Tensor) -> Buffer:
    """The buffer of a resident tensor, for other frameworks (DLPack) and executables.

    It is not copied unless the tensor is a view of a part of its storage, or not row-major.
    Writes into the tensor give it another buffer; this one keeps the elements.

    Raises:
        DeviceError: a tensor of the host.
    """
    found: Buffer = import_module(f"{_RESIDENT}.storages.exchange").buffer_of(tensor)
    return found


def tensor_of(buffer: Buffer) -> torch.Tensor:
    """A resident tensor over a buffer of the device's client, without a copy.

    Raises:
        DeviceError: a buffer of another client.
    """
    found: torch.Tensor = import_module(f"{_RESIDENT}.storages.exchange").tensor_of(buffer)
    return found


def eager_graphs() -> tuple[GraphReport, ...]:
    """The programs that operators on the device became, oldest first (the last 1000).

    A report's `trigger` says why a program of several operators (`PJRT_BRIDGE_EAGER=fused`) was
    compiled after another: what differs from what was recorded before it.
    """
    ledger = import_module("pjrt_bridge.torch_interop.ledger").EAGER
    return tuple(record.report() for record in ledger.graphs)
