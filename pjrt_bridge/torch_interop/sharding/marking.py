"""Dividing tensors over a mesh, and reading them."""

from __future__ import annotations

from typing import Any

import torch

from pjrt_bridge.errors import DeviceError, ProgramError
from pjrt_bridge.mixed.mesh_launcher import in_memory, of_dimensions
from pjrt_bridge.runtime import Buffer, ShardedBuffer
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import moved
from pjrt_bridge.runtime.transfers.host import HostArray
from pjrt_bridge.stablehlo.sharding.sharding import Sharding, Spec
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from pjrt_bridge.torch_interop.device import registration
from pjrt_bridge.torch_interop.meshes.mesh import Mesh
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.resident.client.current import current_index
from pjrt_bridge.torch_interop.resident.storages import transfer
from pjrt_bridge.torch_interop.resident.storages.storage import (
    contents_of,
    geometry_of,
    is_resident,
    resident_tensor,
)
from pjrt_bridge.torch_interop.tensors import adopt
from pjrt_bridge.wrong_arguments import checked


@checked
def mark_sharding(tensor: torch.Tensor, mesh: Mesh, spec: Spec | Sharding) -> torch.Tensor:
    """Divide a tensor over a mesh.

    A tensor on the device, and a parameter wherever it is, is divided in place, with its gradient:
    all views of it, and the optimizers that have it, see that. Of any other tensor of the host a
    sharded one is made. A tensor that is divided, over this mesh or another one, is divided anew.

    Args:
        tensor: of the host or of device `pjrt`.
        mesh: the devices.
        spec: for each dimension the axis that divides it, several from major to minor, or None;
            dimensions behind it are not divided. Or the sharding of another tensor.

    Returns:
        The tensor; for a tensor of the host that is no parameter the sharded one.

    Raises:
        ProgramError: an unknown axis, one that is used twice, more entries than dimensions, a
            sharding over another mesh, or a dimension that does not divide.
        DeviceError: a view of a part of a storage, a tensor of another device or layout, or a
            parameter of the host that autograd holds.
    """
    if not isinstance(tensor, torch.Tensor):
        raise DeviceError(f"mark_sharding: found {tensor!r}, expected a tensor")
    if tensor.layout is not torch.strided:
        raise DeviceError(
            f"mark_sharding: found a tensor of shape {tuple(tensor.shape)} with the layout "
            f"{tensor.layout}, expected a dense one (torch.strided)"
        )
    sharding = spec if isinstance(spec, Sharding) else Sharding.of(mesh.grid, spec, tensor.dim())
    if sharding.mesh != mesh.grid:
        raise ProgramError(f"mark_sharding: found a sharding over {sharding.mesh}, expected {mesh}")
    sharding.shard_shape(tuple(tensor.shape))
    registration.register()
    gradient = tensor.grad if tensor.is_leaf else None
    if is_resident(tensor):
        _divide(tensor, sharding)
        if gradient is not None:
            tensor.grad = gradient if _is_whole(gradient) else gradient.clone()
            _divide(tensor.grad, sharding)
        return tensor
    if tensor.device.type != "cpu":
        raise DeviceError(
            f"mark_sharding: found a tensor on device {tensor.device}, expected one of the host or "
            f"of device {NAME!r}"
        )
    made = _from_host(tensor.detach(), mesh, sharding)
    if not isinstance(tensor, torch.nn.Parameter):
        return made.requires_grad_() if tensor.requires_grad and tensor.is_leaf else made
    parameter = torch.nn.Parameter(made, tensor.requires_grad)
    if gradient is not None:
        parameter.grad = mark_sharding(gradient, mesh, sharding)
    try:
        compat.swap_parameters(tensor, parameter)
    except RuntimeError as error:
        raise DeviceError(
            f"mark_sharding: found a parameter of shape {tuple(tensor.shape)} of the host that is "
            f"used by results that can be differentiated, drop these first ({error})"
        ) from None
    return tensor


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage, whatever the order of its dimensions."""
    contents = contents_of(tensor)
    spec = ValueSpec.argument(transfer.type_of(tensor), tensor.stride())
    return geometry_of(tensor, contents) is None or (
        spec.memory == contents.type and not tensor.storage_offset()
    )


def _divide(tensor: torch.Tensor, sharding: Sharding) -> None:
    contents = contents_of(tensor)
    spec = ValueSpec.argument(transfer.type_of(tensor), tensor.stride())
    divided = in_memory(sharding, spec)
    if divided is None or not _is_whole(tensor):
        raise DeviceError(
            f"mark_sharding: found a view of shape {tuple(tensor.shape)} of a storage of "
            f"{contents.type}, expected a tensor that is all of its storage; mark that one, or a "
            "clone"
        )
    contents.replace(moved(contents.buffer, divided))


def _from_host(tensor: torch.Tensor, mesh: Mesh, sharding: Sharding) -> torch.Tensor:
    spec = ValueSpec.argument(transfer.type_of(tensor), tensor.stride())
    divided = in_memory(sharding, spec)
    assert divided is not None
    # The user may write into the tensor while the plugin still reads.
    copy = tensor.clone(memory_format=torch.preserve_format)
    host: HostArray = ADAPTER.host_array(copy, spec)
    transfer.COUNTS.to_device += spec.nbytes
    return resident_tensor(
        ShardedBuffer.put_host(mesh.client, host, divided), spec, current_index()
    )


def _array(tensor: torch.Tensor) -> tuple[ValueSpec, Buffer | ShardedBuffer]:
    if not is_resident(tensor):
        where = getattr(tensor, "device", type(tensor).__name__)
        raise DeviceError(f"found a tensor of {where}, expected one of device {NAME!r}")
    spec = ValueSpec.argument(transfer.type_of(tensor), tensor.stride())
    return spec, transfer.buffer_as(tensor.detach(), spec)


def sharding_of(tensor: torch.Tensor) -> Sharding | None:
    """The sharding of a tensor; None where it is on one device.

    Raises:
        DeviceError: a tensor that is not on device `pjrt`.
    """
    spec, array = _array(tensor)
    return of_dimensions(array.sharding, spec) if isinstance(array, ShardedBuffer) else None


def shards(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The part of a tensor that each device of its mesh has, as tensors of the host.

    Raises:
        DeviceError: a tensor that is not divided.
    """
    spec, array = _array(tensor)
    if not isinstance(array, ShardedBuffer):
        raise DeviceError(
            f"found a tensor of shape {tuple(tensor.shape)} on one device, expected one that is "
            "divided: mark_sharding does that"
        )
    parts = [adopt(one, ValueSpec.row_major(one.type)).clone() for one in array.shards]
    return tuple(part if spec.inverse is None else part.permute(spec.inverse) for part in parts)


def full(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of a tensor, in host memory.

    Raises:
        DeviceError: a tensor that is not on device `pjrt`.
    """
    _array(tensor)
    return tensor.detach().to("cpu")
