"""Copies of tensors: to the device, back, between devices, and one into another."""

from __future__ import annotations

import ctypes
from typing import Any, cast

import numpy as np
import torch

from pjrt_bridge.mixed.mesh_launcher import in_memory, of_dimensions
from pjrt_bridge.runtime import ShardedBuffer
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import placed, whole
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.bind.adapter import ADAPTER
from pjrt_bridge.torch_interop.compat.devices.third_party_device import with_shape
from pjrt_bridge.torch_interop.device.operators.operators import call
from pjrt_bridge.torch_interop.meshes.constraint import Constraint
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.resident.calls import shortcuts
from pjrt_bridge.torch_interop.resident.calls.overlaps import need_apart
from pjrt_bridge.torch_interop.resident.client import failures
from pjrt_bridge.torch_interop.resident.client.chosen import chosen, eager_mode
from pjrt_bridge.torch_interop.resident.client.refusals import need_no_overlap
from pjrt_bridge.torch_interop.resident.storages import replacement, transfer, uploads
from pjrt_bridge.torch_interop.resident.storages.factories import resize
from pjrt_bridge.torch_interop.resident.storages.storage import (
    contents_of,
    geometry_of,
    is_resident,
    resident_tensor,
)


def copy_from(
    source: torch.Tensor | complex, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """`aten._copy_from`: `target.copy_(source)`, where one of them is on the device at least.

    Torch passes a number, which `copy_` takes, too, as it is.
    """
    target = with_shape(target)
    need_no_overlap(target)
    if not isinstance(source, torch.Tensor):
        source = torch.from_numpy(np.asarray(source))
    source = with_shape(source)
    if is_resident(source) and is_resident(target):
        need_apart(_copy(), [target], (target, source), {})
    source = _read_as_it_lies(source)
    if not is_resident(target):
        with compat.untraced():
            target.copy_(transfer.to_host(source))
        return target
    if is_resident(source) and _are_over_different_meshes(source, target):
        source = transfer.to_host(source)
    if not is_resident(source):
        with compat.untraced():
            source = source.to(target.dtype)
        if _filled_over_mesh(source, target):
            return target
        source = uploads.to_device(source, target.device.index or 0)
    elif source.device != target.device:
        source = _moved(source, target.device.index or 0)
    source = _lying_as(source, target)
    if source.dtype != target.dtype or source.shape != target.shape:
        call(_copy(), target, source)
        return target
    held, given = contents_of(target), contents_of(source)
    if geometry_of(target, held) is None and geometry_of(source, given) is None:
        held.assign(given.elements)
        return target
    if eager_mode() == "fused":
        call(_copy(), target, source)
        return target
    row_major = ValueSpec.row_major(transfer.type_of(source))
    replacement.replace_elements(target, transfer.buffer_as(source, row_major), row_major)
    return target


def _are_over_different_meshes(source: torch.Tensor, target: torch.Tensor) -> bool:
    given, held = contents_of(source).held, contents_of(target).held
    return (
        isinstance(given, ShardedBuffer)
        and isinstance(held, ShardedBuffer)
        and given.sharding.mesh != held.sharding.mesh
    )


def _filled_over_mesh(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether a tensor that is divided got its parts from host memory, with no device between."""
    held = contents_of(target)
    if not held.is_divided or target.shape != source.shape or target.is_conj() or target.is_neg():
        return False
    if geometry_of(target, held) is not None:
        return False
    before = held.buffer
    assert isinstance(before, ShardedBuffer)
    with compat.untraced():
        # The user may write into the source while the plugin still reads.
        host = ADAPTER.host_array(source.clone(), ValueSpec.row_major(held.type))
    transfer.COUNTS.to_device += held.type.nbytes
    held.replace(ShardedBuffer.put_host(before.client, host, before.sharding))
    return True


def _read_as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose memory holds its values: torch conjugates and negates when it is read."""
    if is_resident(tensor):
        if tensor.is_conj():
            return cast(torch.Tensor, call(torch.ops.aten._conj_physical.default, tensor))
        if tensor.is_neg():
            return cast(torch.Tensor, call(torch.ops.aten.neg.default, tensor))
    return tensor


def _lying_as(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """What the memory of a target is to hold: torch conjugates and negates when it is read."""
    if target.is_conj() and source.is_complex():
        source = call(torch.ops.aten._conj_physical.default, source)
    if target.is_neg():
        source = call(torch.ops.aten.neg.default, source)
    return source


def _copy() -> Any:
    return torch.ops.aten.copy_.default


def _moved(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """A copy on another device of the client."""
    row_major = ValueSpec.row_major(transfer.type_of(tensor))
    _, device = chosen(index)
    array = transfer.buffer_as(tensor, row_major)
    buffer = whole(array) if isinstance(array, ShardedBuffer) else array
    # A device may have several names, and a buffer never changes.
    if buffer.device is not device:
        buffer = buffer.copy_to(device)
    return resident_tensor(buffer, row_major, index)


def constrained(tensor: torch.Tensor, *asked: Any) -> torch.Tensor:
    """A copy that is divided as a constraint says."""
    spec = ValueSpec.argument(transfer.type_of(tensor), tensor.stride())
    array = transfer.buffer_as(tensor, spec)
    held = of_dimensions(array.sharding, spec) if isinstance(array, ShardedBuffer) else None
    wanted = Constraint.parse(tensor.dim(), *asked).over(held)
    wanted.shard_shape(tensor.shape)
    divided = in_memory(wanted, spec)
    # What repeats elements has another shape in memory.
    found = array if divided is None else placed(array, divided)
    return resident_tensor(found, spec, tensor.device.index or 0)


def conjugate(tensor: torch.Tensor) -> torch.Tensor:
    """`aten.conj_physical_`, whose own code knows the devices that torch has kernels for."""
    if not tensor.is_complex():
        return tensor
    # Of a tensor that is conjugated when it is read this is what it has been.
    found = call(torch.ops.aten._conj_physical.default, tensor)
    if tensor.is_conj():
        found = call(torch.ops.aten._conj_physical.default, found)
    return copy_from(found, tensor)


def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """`aten._copy_from_and_resize`."""
    if is_resident(target):
        resize(target, source.shape)
    else:
        target.resize_(source.shape)
    return copy_from(source, target)


def number(tensor: torch.Tensor) -> Any:
    """`aten._local_scalar_dense`: what `tensor.item()` gives."""
    contents = contents_of(tensor)
    kind = _IN_MEMORY.get(tensor.dtype)
    if kind is None or contents.type.size != 1 or geometry_of(tensor, contents) is not None:
        return transfer.to_host(tensor).item()
    held = contents.held
    address = None if tensor.is_neg() else shortcuts.address(held, contents.index)
    if address is None:
        buffer = contents.buffer
        if isinstance(buffer, ShardedBuffer):
            buffer = whole(buffer)
        if tensor.is_neg() or not buffer.client.shares_host_memory:
            return transfer.to_host(tensor).item()
        with buffer.held(), failures.seen_later():
            found = kind.from_address(buffer.address).value
    else:
        # Losses are read in each step: no tensor is made of them, nor a buffer.
        found = kind.from_address(address).value
    transfer.COUNTS.to_host += contents.type.nbytes
    return found


_IN_MEMORY: dict[torch.dtype, Any] = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
    torch.int32: ctypes.c_int32,
    torch.int64: ctypes.c_int64,
    torch.bool: ctypes.c_bool,
}


def equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """`aten.equal`: whether shapes and all elements are the same."""
    if tensor.shape != other.shape:
        return False
    return bool(torch.eq(tensor, other).all().item())


def takes_data_of(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """`aten._has_compatible_shallow_copy_type`: whether `tensor.data = other` is allowed.

    As between the host and the devices that torch knows, of which it has a list in C++.
    """
    return all(
        each.layout is torch.strided and each.device.type in ("cpu", NAME)
        for each in (tensor, other)
    )
