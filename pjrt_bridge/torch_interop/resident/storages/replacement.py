"""Writing what a program gave into a resident tensor, and so into all views of its storage."""

from __future__ import annotations

import torch

from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.torch_interop.resident.storages import transfer
from pjrt_bridge.torch_interop.resident.storages.storage import (
    contents_of,
    geometry_of,
    resident_tensor,
)


def replace_elements(tensor: torch.Tensor, buffer: AnyBuffer, spec: ValueSpec) -> None:
    """Write into a resident tensor what a program gave for it."""
    contents = contents_of(tensor)
    geometry = geometry_of(tensor, contents)
    if geometry is None and spec.order is None and buffer.type == contents.type:
        contents.assign(buffer)
        return
    made = resident_tensor(buffer, spec, contents.index)
    row_major = ValueSpec.row_major(spec.type)
    if geometry is None:
        contents.assign(transfer.buffer_as(made, ValueSpec.row_major(contents.type)))
    elif _fills(tensor, spec) and spec.memory == contents.type:
        contents.assign(buffer)
    else:
        transfer.write(contents, geometry, transfer.buffer_as(made, row_major))


def _fills(tensor: torch.Tensor, spec: ValueSpec) -> bool:
    """Whether a tensor is all of its storage, lying as a spec says."""
    return not tensor.storage_offset() and tensor.stride() == spec.strides
