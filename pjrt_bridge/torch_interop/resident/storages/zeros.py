"""Arrays of one number, made on the device: what a storage holds before anything was written."""

from __future__ import annotations

from functools import lru_cache

from pjrt_bridge.runtime import Buffer, Client, CompileOptions, Executable, ShardedBuffer
from pjrt_bridge.runtime.objects.mesh_program import MeshProgram
from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.resident.client.chosen import chosen, of_client
from pjrt_bridge.torch_interop.tensors import torch_dtype
from pjrt_bridge.torch_interop.uninitialized import filling

_KEPT = 1024
"""Programs that are kept, one for each type and device."""


_SMALL = 1 << 16
"""Bytes of an array that is kept: nothing writes into a buffer."""


def zeros(type: TensorType, index: int) -> Buffer:
    """An array of zeros on the device with this index."""
    client, device = chosen(index)
    if type.nbytes > _SMALL:
        return _made(client, type, device.id)
    found = _kept(client, type, device.id)
    if found.handle.released:
        # Its user deleted it.
        _kept.cache_clear()
        found = _kept(client, type, device.id)
    return found


def _made(client: Client, type: TensorType, device: int, value: float = 0) -> Buffer:
    found: Buffer
    (found,) = _program(client, type, device, value).execute([])
    return found


def filled(type: TensorType, index: int) -> Buffer:
    """An array that nothing was written into, filled as torch's settings want it."""
    client, device = chosen(index)
    return _made(client, type, device.id, filling(torch_dtype(type.dtype)))


def zeros_over(type: TensorType, other: ShardedBuffer) -> ShardedBuffer:
    """An array of zeros that is divided as another one of the same shape."""
    program = _program_over(other.client, type)
    found: ShardedBuffer
    (found,) = program.executable(other.sharding.mesh, [], [other.sharding]).execute([])
    return found


@lru_cache(_KEPT)
def _program_over(client: Client, type: TensorType) -> MeshProgram:
    builder = Builder([], name="zeros")
    return MeshProgram(client, builder.finish([builder.full(type.shape, 0, type.dtype)]))


_kept = lru_cache(128)(_made)
of_client(_kept.cache_clear)


@lru_cache(_KEPT)
def _program(client: Client, type: TensorType, device: int, value: float) -> Executable:
    builder = Builder([], name="filled")
    program = builder.finish([builder.full(type.shape, value, type.dtype)])
    return client.compile(program, options=CompileOptions(device_assignment=[[device]]))
