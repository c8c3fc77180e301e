"""Arrays of zeros, made on the device: what a storage holds before anything was written."""

from __future__ import annotations

from functools import lru_cache

from pjrt_bridge.runtime import Buffer, Client, CompileOptions, Executable
from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.device.chosen import chosen

_KEPT = 1024
"""Programs that are kept, one for each type and device."""


def zeros(type: TensorType, index: int) -> Buffer:
    """A new array of zeros on the device with this index."""
    client, device = chosen(index)
    found: Buffer
    (found,) = _program(client, type, device.id).execute([])
    return found


@lru_cache(_KEPT)
def _program(client: Client, type: TensorType, device: int) -> Executable:
    builder = Builder([], name="zeros")
    program = builder.finish([builder.full(type.shape, 0, type.dtype)])
    return client.compile(program, options=CompileOptions(device_assignment=[[device]]))
