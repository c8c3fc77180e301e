"""Layouts: the order and tiling of elements on the device, as the compiler and the plugin see it.

What a program demands and gives is chosen with `mhlo.layout_mode`, see `Program.with_layouts`, and
`Client.put` takes a layout; this extension tells what became of it, also for devices that are not
there.
"""

from __future__ import annotations

import ctypes
from typing import ClassVar

from pjrt_bridge.abi.extension_structs import ExtensionTable, by_name
from pjrt_bridge.abi.values import free, int64s, read_pointers
from pjrt_bridge.errors import DataError
from pjrt_bridge.extensions.base import Accessor
from pjrt_bridge.runtime import Buffer, Compiled, CompiledExecutable, Layout, Topology
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.wrong_arguments import checked_methods


@checked_methods
class Layouts(Accessor):
    """Layouts of types, buffers and programs (pjrt_c_api_layouts_extension.h, versions 1 to 4).

    All methods raise `ExtensionUnavailable` where the plugin has no such function: programs tell
    the layouts of their outputs from struct size 72 on, of their parameters from 80 on.
    """

    TABLE: ClassVar[ExtensionTable] = by_name("Layouts")

    def default(self, type: TensorType) -> Layout:
        """The layout that the client, or devices of the topology, give to arrays of a type."""
        if isinstance(self.owner, Topology):
            return self.topology_default(type)
        return self._default("Client_GetDefaultLayout", type, client=self.owner.handle.pointer)

    def topology_default(self, type: TensorType, topology: Topology | None = None) -> Layout:
        """The layout that devices of a topology give to arrays of a type.

        Args:
            type: shape and element type.
            topology: of the same plugin; None: the one that was asked, or that of the client.

        Raises:
            DataError: a topology of another plugin.
            Unimplemented: the client tells no topology.
        """
        topology = self.topology(topology)
        # The one that is asked for the extension is pinned by `call`, another is not.
        with topology.handle.held():
            pointer = topology.pointer
            return self._default("Topology_GetDefaultLayout", type, topology_description=pointer)

    def _default(self, function: str, type: TensorType, **owner: int) -> Layout:
        self.owner.check_dtype(type.dtype)
        dims = int64s(type.shape)
        made = self.call(
            function,
            type=type.dtype.code,
            dims=ctypes.addressof(dims),
            num_dims=len(dims),
            **owner,
        )
        return self._take(made.layout)

    def of(self, buffer: Buffer) -> Layout:
        """The layout of a buffer.

        Raises:
            BufferUnavailable: it was donated or deleted.
        """
        with buffer.held() as pointer:
            self._check_owner(buffer)
            return self._take(self.call("Buffer_MemoryLayout", buffer=pointer).layout)

    def outputs(self, executable: Compiled) -> tuple[Layout, ...]:
        """The layouts of a program's results."""
        with executable.held() as pointer:
            self._check_owner(executable)
            found = self.call("Executable_GetOutputLayouts", executable=pointer)
            return self._borrow(found.layouts, found.num_outputs)

    def parameters(self, executable: Compiled) -> tuple[Layout, ...]:
        """The layouts in which a program takes its arguments."""
        with executable.held() as pointer:
            self._check_owner(executable)
            found = self.call("Executable_GetParameterLayouts", executable=pointer)
            return self._borrow(found.layouts, found.num_parameters)

    def _check_owner(self, item: Buffer | Compiled) -> None:
        # Plugins read foreign objects as if they were their own.
        if isinstance(item, CompiledExecutable):
            foreign = item.api is not self.owner.api
        else:
            foreign = getattr(item, "client", None) is not self.owner
        if foreign:
            raise DataError(f"{item!r} belongs to another client than {self.owner!r}")

    def _take(self, layout: int) -> Layout:
        """Read a layout that is the caller's, and destroy it."""
        try:
            return self._read(layout)
        finally:
            self.call("MemoryLayout_Destroy", layout=layout)

    def _borrow(self, layouts: int | None, count: int) -> tuple[Layout, ...]:
        """Read layouts that their executable owns."""
        return tuple(self._read(layout) for layout in read_pointers(layouts, count))

    def _read(self, layout: int) -> Layout:
        found = self.call("MemoryLayout_Serialize", layout=layout)
        try:
            text = ctypes.string_at(found.serialized_bytes, found.serialized_bytes_size).decode()
        finally:
            free(found.serialized_layout_deleter, found.serialized_layout)
        return Layout.parse(text)
