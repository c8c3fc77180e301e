"""Between resident tensors and buffers, without a copy: for other frameworks and other programs."""

from __future__ import annotations

import torch

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.runtime import Buffer, ShardedBuffer
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.resident.client import chosen
from pjrt_bridge.torch_interop.resident.storages import transfer
from pjrt_bridge.torch_interop.resident.storages.storage import is_resident, resident_tensor
from pjrt_bridge.wrong_arguments import require


def buffer_of(tensor: torch.Tensor) -> Buffer:
    """The buffer of a resident tensor; see `device.buffer_of`."""
    if not is_resident(tensor):
        require(tensor, torch.Tensor, "buffer_of: tensor")
        raise DeviceError(
            f"found a tensor of shape {tuple(tensor.shape)} on {tensor.device}, expected one on "
            f"device {NAME!r}; Client.put makes a buffer of a host tensor"
        )
    plain = tensor.detach().resolve_conj().resolve_neg()
    found = transfer.buffer_as(plain, ValueSpec.row_major(transfer.type_of(plain)))
    if isinstance(found, ShardedBuffer):
        raise DeviceError(
            f"found a tensor of shape {tuple(tensor.shape)} that is divided, {found.sharding}, "
            "expected one on one device; sharding.shards(tensor) gives the buffers, "
            "sharding.full(tensor) a tensor of the host"
        )
    return found


def tensor_of(buffer: Buffer) -> torch.Tensor:
    """A resident tensor over a buffer; see `device.tensor_of`."""
    require(buffer, Buffer, "tensor_of: buffer")
    client = chosen.client()
    if buffer.client is not client:
        raise DeviceError(
            f"found a buffer of plugin {buffer.client.plugin.name!r}, expected one of the client "
            f"that device {NAME!r} is, plugin {client.plugin.name!r}: device.use() gives it"
        )
    index = chosen.index_of_own(buffer.device)
    return resident_tensor(buffer, ValueSpec.row_major(buffer.type), index)
