"""Client: the devices of a plugin, and what can be made on them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pjrt_bridge.abi.values import (
    encode_named_values,
    read_pointers,
    text,
)
from pjrt_bridge.errors import (
    DataError,
    InvalidArgument,
    NotFound,
    OptionError,
    PjrtError,
    PluginIncompatible,
    ProgramError,
    Unimplemented,
)
from pjrt_bridge.runtime import platforms
from pjrt_bridge.runtime.compile.compiling import compile_program, prepared
from pjrt_bridge.runtime.compile.options import CompileOptions, Override
from pjrt_bridge.runtime.compile.serialized import unpack
from pjrt_bridge.runtime.objects.accessors import Extensible
from pjrt_bridge.runtime.objects.buffer import Buffer
from pjrt_bridge.runtime.objects.create_options import check_client_options
from pjrt_bridge.runtime.objects.device import Device, Memory
from pjrt_bridge.runtime.objects.executable import Executable
from pjrt_bridge.runtime.objects.topology import Topology
from pjrt_bridge.runtime.ownership.handles import Finalizer, Handle, release_soon
from pjrt_bridge.runtime.platforms import PlatformSpec
from pjrt_bridge.runtime.transfers import putting, relayout
from pjrt_bridge.runtime.transfers.host import HostArray
from pjrt_bridge.runtime.transfers.layout import Layout
from pjrt_bridge.runtime.transfers.transfer import shares_host_memory, transfer
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import Signature

if TYPE_CHECKING:
    from pjrt_bridge.runtime.objects.plugin import Plugin


class Client(Extensible):
    """The devices of one plugin.

    `Plugin.client` gives the same client for the same options; the constructor always makes a new
    one. Buffers and executables keep their client alive; closing the client ends them all.

    Attributes:
        plugin: the plugin.
        options: create options, checked.
        platform_name: the plugin's name of the platform, such as "cpu".
        platform_version: the plugin's account of its version.
        devices: devices of this process, in the plugin's order.
        num_devices: devices of all processes.
        memories: memory spaces of this process.
        shares_host_memory: the plugin was seen to use host memory in place.
        api: the plugin's function table.
        handle: the plugin's object.
    """

    def __init__(self, plugin: Plugin, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(plugin)
        api = self.api
        self.options = check_client_options(
            {} if options is None else options, plugin.option_types, plugin=plugin.name
        )
        encoded, keep = encode_named_values(self.options)
        made = api.call("Client_Create", create_options=encoded, num_options=len(self.options))
        del keep
        self.handle = Handle(api, "Client", made.client, None, argument="client")
        try:
            self._describe()
        except BaseException:
            self.close()
            raise

    def _describe(self) -> None:
        api, pointer = self.api, self.handle.pointer
        name = api.call("Client_PlatformName", client=pointer)
        self.platform_name = text(name.platform_name, name.platform_name_size)
        version = api.call("Client_PlatformVersion", client=pointer)
        self.platform_version = text(version.platform_version, version.platform_version_size)
        self.process_index = int(api.call("Client_ProcessIndex", client=pointer).process_index)
        self._memories = {address: Memory(api, address) for address in self._memory_pointers()}
        self.memories = tuple(self._memories.values())
        listed = api.call("Client_AddressableDevices", client=pointer)
        self._devices = {
            address: Device(self.handle, address, self._memories)
            for address in read_pointers(listed.addressable_devices, listed.num_addressable_devices)
        }
        self.devices = tuple(self._devices.values())
        self.num_devices = self._count_devices()
        if not self.devices:
            raise OptionError(
                f"plugin {self.plugin.name!r} made a client without devices from the options "
                f"{self.options}"
            )
        self.shares_host_memory = shares_host_memory(self)
        _open.add(self)

    def _memory_pointers(self) -> tuple[int, ...]:
        try:
            found = self.api.call("Client_AddressableMemories", client=self.handle.pointer)
        except PjrtError:
            return ()
        return read_pointers(found.addressable_memories, found.num_addressable_memories)

    def _count_devices(self) -> int:
        try:
            return int(self.api.call("Client_Devices", client=self.handle.pointer).num_devices)
        except PjrtError:
            return len(self.devices)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.handle.released

    def device(self, id: int) -> Device:
        """The device of this process with a global id.

        Raises:
            DataError: there is none; the message lists those there are.
        """
        for device in self.devices:
            if device.id == id:
                return device
        ids = [device.id for device in self.devices]
        raise DataError(f"client of {self.plugin.name!r} has no device {id}; it has {ids}")

    def device_of(self, pointer: int) -> Device:
        """The device behind a PJRT_Device of this process.

        Raises:
            PluginIncompatible: there was no such device when the client was made.
        """
        found = self._devices.get(pointer)
        if found is None:
            raise PluginIncompatible(
                f"plugin {self.plugin.name!r} speaks of a device at {pointer:#x} that its client "
                "did not list"
            )
        return found

    def memory_of(self, pointer: int) -> Memory | None:
        """The memory space behind a PJRT_Memory of this process."""
        return self._memories.get(pointer)

    def custom_layout(self, order: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """A minor-to-major order as `Buffer.custom_layout` has it: None for the default."""
        # A plugin that uses host arrays as they lie has shown that row-major is its default.
        row_major = order is None or Layout(order).row_major
        return None if row_major and self.shares_host_memory else order

    def put(
        self,
        data: Any,
        device: Device | None = None,
        *,
        memory: Memory | None = None,
        layout: Layout | Sequence[int] | None = None,
        copy: bool | None = None,
    ) -> Buffer:
        """Make a buffer of an array: of host data, or of a framework's array on a GPU.

        An array on a GPU that this client has is used where it lies, behind the work of the stream
        that makes it; other arrays have to be on the host.

        Args:
            data: a NumPy array, a torch tensor, anything with DLPack, `__array__` or the buffer
                protocol, a number or nested lists; a Buffer of this client, which is copied only
                where it has to move.
            device: where to; by default the first device (that reaches `memory`).
            memory: a memory space of that device; the device's default by default.
            layout: order of the elements on the device, as a Layout without tiles or a
                minor-to-major sequence of dimensions; the plugin's default by default.
            copy: None shares host memory where the plugin can use it in place (64-byte aligned,
                in the layout's order) and copies elsewhere; True always copies; False raises
                where it would have to copy. Shared memory must not change while the buffer is in
                use.

        Raises:
            UnsupportedDtype: an element type that the plugin or PJRT does not have.
            DataError: not an array, in memory of other devices, not shareable with `copy=False`, a
                place that is not this client's, or a layout of another rank.
            Unimplemented: the plugin's programs read no custom layouts.
            PjrtError: the plugin refused (out of memory, ...).
        """
        if isinstance(data, Buffer):
            return putting.put_buffer(self, data, device, memory, layout, copy)
        return putting.put_array(self, data, device, memory, layout, copy)

    def put_host(
        self, host: HostArray, device: Device | None = None, *, writable: bool = False
    ) -> Buffer:
        """`put` for memory that is described already: shared where possible, else copied.

        With `writable` a program to which the buffer is donated writes its result there.
        """
        share = self.shares_host_memory and host.shareable
        where = device or self.devices[0]
        return transfer(self, host, where, None, share=share, writable=writable)

    def place(self, device: Device | None, memory: Memory | None) -> Device:
        """The device of a placement that leaves one of both open, or both.

        Raises:
            DataError: a device or memory space of another client, or a memory space that the
                device does not reach.
        """
        if device is not None and not (
            isinstance(device, Device) and self._devices.get(device.pointer) is device
        ):
            raise DataError(f"{device!r} is no device of {self!r}")
        if memory is None:
            return device or self.devices[0]
        if not (isinstance(memory, Memory) and self._memories.get(memory.pointer) is memory):
            raise DataError(f"{memory!r} is no memory space of {self!r}")
        for candidate in self.devices if device is None else (device,):
            if memory in candidate.memories:
                return candidate
        raise DataError(f"{memory!r} is out of reach of {device or self!r}")

    def compile(
        self, program: Program | str | bytes, *, options: CompileOptions | None = None
    ) -> Executable:
        """Compile a StableHLO program for this client's devices.

        Args:
            program: a Program, or StableHLO text, bytecode or a portable artifact.
            options: replicas, partitions, flags; one device by default.

        Raises:
            ProgramError: not a program, not expressible for the plugin's StableHLO version, or
                packed elements in a custom layout.
            UnsupportedDtype: an argument or result type that the plugin does not know.
            PjrtError: the plugin could not compile it.
        """
        program, checked = prepared(self, self.num_devices, program, options)
        return compile_program(
            self, program, replace(checked, env={**self.safe_flags, **checked.env})
        )

    @cached_property
    def placement(self) -> relayout.Placement:
        """What the plugin does with elements that are to come into a custom layout; tried once."""
        return relayout.find_placement(self)

    @cached_property
    def reads_in_memory_order(self) -> bool:
        """Whether the plugin gives elements to the host in the order of their layout; tried once.

        Else it gives them in row-major order.
        """
        return relayout.reads_in_memory_order(self)

    @cached_property
    def platform_spec(self) -> PlatformSpec:
        """What an installed package states of the platform, found by `platform_name`."""
        return platforms.find(self.platform_name)

    @cached_property
    def safe_flags(self) -> Mapping[str, Override]:
        """Compiler flags that every compilation gets, see `PlatformSpec.compiler_flags`."""
        self.platform_spec.warn()
        flags = self.platform_spec.compiler_flags
        if flags:
            try:
                compile_program(self, Program.parse(_NOTHING), CompileOptions(env=flags)).close()
            except (InvalidArgument, NotFound, Unimplemented):
                # It does not know them. What else may fail says nothing about the flags.
                return {}
        return flags

    def deserialize(self, data: bytes | bytearray | memoryview) -> Executable:
        """Load what `serialize` of an executable wrote, for the same plugin and platform version.

        Of a program that was compiled for a topology only the platform's name is compared here: its
        version is that of a device in some plugins. The plugin checks the rest.

        Raises:
            ProgramError: no serialized executable of this bridge, truncated, or made by another
                plugin.
            PjrtError: the plugin refused its part.
        """
        header, blob = unpack(data)
        ahead = header.topology is not None and header.platform.startswith(f"{self.platform_name} ")
        if not ahead and header.platform != self.platform:
            raise ProgramError(
                f"the serialized executable {header.name!r} was made for {header.platform!r}, "
                f"this client runs {self.platform!r}"
            )
        signature = Signature.from_json(header.signature)
        with self.handle.held() as pointer:
            made = self.api.call(
                "Executable_DeserializeAndLoad",
                client=pointer,
                serialized_executable=blob,
                serialized_executable_size=len(blob),
            )
            found = Executable(
                self, made.loaded_executable, signature, header.name, header.portable
            )
            found.origin = bytes(data)
            return found

    @cached_property
    def topology(self) -> Topology:
        """The description of all devices; it ends with the client.

        Raises:
            Unimplemented: the plugin tells none.
            Closed: the client was closed.
        """
        return Topology.of_client(self)

    @property
    def platform(self) -> str:
        """Name and version of the platform, as one text."""
        return f"{self.platform_name} {self.platform_version}"

    def close(self) -> None:
        """End the client and everything made on it; memory that is viewed elsewhere stays valid."""
        self.handle.release()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self, release_soon: Finalizer = release_soon) -> None:
        release_soon(getattr(self, "handle", None))

    def __repr__(self) -> str:
        count = len(self.devices)
        devices = f"{count} device{'s' if count > 1 else ''}"
        return f"<Client of {self.plugin.name!r}, {devices}{', closed' if self.closed else ''}>"


_open: weakref.WeakSet[Client] = weakref.WeakSet()


def open_clients() -> tuple[Client, ...]:
    """The clients of this process that were not closed."""
    return tuple(client for client in list(_open) if not client.closed)


_NOTHING = """
func.func @main() -> tensor<i32> {
  %0 = stablehlo.constant dense<0> : tensor<i32>
  return %0 : tensor<i32>
}
"""
