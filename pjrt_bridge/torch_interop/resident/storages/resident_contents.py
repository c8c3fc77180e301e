"""What a storage holds, as an argument of a program."""

from __future__ import annotations

import torch

from pjrt_bridge.mixed.execution import ResidentValue
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.torch_interop.resident.storages import transfer
from pjrt_bridge.torch_interop.resident.storages.storage import Contents, resident_tensor


class ResidentContents(ResidentValue):
    """An array in a storage, as an argument of a program."""

    __slots__ = ("contents", "host", "replaced")

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.host: torch.Tensor | None = None
        self.replaced = False

    def buffer_as(self, spec: ValueSpec) -> AnyBuffer:
        """Its elements; programs of calls take them as they lie."""
        return self.contents.buffer

    def tensor(self) -> torch.Tensor:
        """A copy in host memory; waits for the values."""
        if self.host is None:
            buffer = self.contents.buffer
            row_major = ValueSpec.row_major(buffer.type)
            made = resident_tensor(buffer, row_major, self.contents.index)
            self.host = transfer.to_host(made)
        return self.host

    def replace(self, buffer: AnyBuffer, spec: ValueSpec) -> None:
        """Have the storage hold other elements."""
        self.contents.assign(buffer)
        self.replaced = True

    def place(self, before: AnyBuffer, after: AnyBuffer) -> None:
        """Have the storage hold the same elements, divided."""
        if self.contents.held is before:
            self.contents.replace(after)
