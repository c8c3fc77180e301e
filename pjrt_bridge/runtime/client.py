"""Client: the devices of a plugin, and what can be made on them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt_bridge.abi.api import Api
from pjrt_bridge.abi.chain import Extension
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import (
    NamedValue,
    encode_named_values,
    int64s,
    read_pointers,
    text,
)
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import (
    DataError,
    OptionError,
    PjrtError,
    ProgramError,
    UnsupportedDtype,
)
from pjrt_bridge.runtime.buffer import Buffer
from pjrt_bridge.runtime.device import Device, Memory
from pjrt_bridge.runtime.executable import Executable
from pjrt_bridge.runtime.handles import Handle, defer, lend
from pjrt_bridge.runtime.host import ALIGNMENT, HostArray, describe
from pjrt_bridge.runtime.options import CompileOptions
from pjrt_bridge.runtime.serialized import unpack
from pjrt_bridge.stablehlo.program import Program
from pjrt_bridge.stablehlo.types import Signature, TensorType

if TYPE_CHECKING:
    from pjrt_bridge.runtime.plugin import Plugin

_COPY_DURING_CALL, _SHARE = 0, 2


class Client:
    """The devices of one plugin.

    `Plugin.client` gives the same client for the same options; the constructor always makes a new
    one. Buffers and executables keep their client alive; closing the client ends them all.

    Attributes:
        plugin: the plugin.
        options: create options, checked.
        platform_name: the plugin's name of the platform, such as "cpu".
        platform_version: the plugin's account of its version.
        devices: devices of this process, in the plugin's order.
        memories: memory spaces of this process.
        shares_host_memory: the plugin was seen to use host memory in place.
        api: the plugin's function table.
        handle: the plugin's object.
    """

    def __init__(self, plugin: Plugin, options: Mapping[str, NamedValue] | None = None) -> None:
        api = plugin.api
        self.plugin = plugin
        self.api: Api = api
        self.options = dict(options or {})
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
        if not self.devices:
            raise OptionError(
                f"plugin {self.plugin.name!r} made a client without devices from the options "
                f"{self.options}"
            )
        self.shares_host_memory = self._probe_sharing()

    def _memory_pointers(self) -> tuple[int, ...]:
        try:
            found = self.api.call("Client_AddressableMemories", client=self.handle.pointer)
        except PjrtError:
            return ()
        return read_pointers(found.addressable_memories, found.num_addressable_memories)

    def _probe_sharing(self) -> bool:
        needed = ("Buffer_OpaqueDeviceMemoryDataPointer", "Buffer_IsOnCpu")
        if not all(self.api.has(name) for name in needed):
            return False
        raw = np.zeros(2 * ALIGNMENT, np.uint8)
        start = -raw.__array_interface__["data"][0] % ALIGNMENT
        aligned = raw[start : start + ALIGNMENT]
        try:
            with self._put(describe(aligned), self.devices[0], None, share=True) as probe:
                on_host = self._on_host(probe)
                return on_host and probe.address == aligned.__array_interface__["data"][0]
        except PjrtError:
            return False

    def _on_host(self, buffer: Buffer) -> bool:
        with buffer.held() as pointer:
            return bool(self.api.call("Buffer_IsOnCpu", buffer=pointer).is_on_cpu)

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """The plugin's extension chain, in its own order, unknown types included."""
        return self.plugin.extensions

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
        """The device behind a PJRT_Device of this process."""
        return self._devices[pointer]

    def memory_of(self, pointer: int) -> Memory | None:
        """The memory space behind a PJRT_Memory of this process."""
        return self._memories.get(pointer)

    def put(
        self,
        data: Any,
        device: Device | None = None,
        *,
        memory: Memory | None = None,
        copy: bool | None = None,
    ) -> Buffer:
        """Make a buffer of host data.

        Args:
            data: a NumPy array, a torch tensor, anything with DLPack, `__array__` or the buffer
                protocol, a number or nested lists; a Buffer of this client goes through as it is.
            device: where to; the client's first device by default.
            memory: a memory space of that device; its default by default.
            copy: None shares host memory where the plugin can use it in place (64-byte aligned,
                row-major) and copies elsewhere; True always copies; False raises where it would
                have to copy. Shared memory must not change while the buffer is in use.

        Raises:
            UnsupportedDtype: an element type that the plugin or PJRT does not have.
            DataError: not an array, not on the host, or not shareable with `copy=False`.
            PjrtError: the plugin refused (out of memory, ...).
        """
        if isinstance(data, Buffer):
            return self._adopt(data, device)
        if device is not None and self._devices.get(device.pointer) is not device:
            raise DataError(f"{device!r} does not belong to this client of {self.plugin.name!r}")
        if memory is not None and self._memories.get(memory.pointer) is not memory:
            raise DataError(f"{memory!r} does not belong to this client of {self.plugin.name!r}")
        host = describe(data)
        share = copy is not True and self.shares_host_memory and host.shareable
        share = share and host.dtype.bits >= 8
        if copy is False and not share:
            raise DataError(
                f"an array of {host.dtype} at address {host.address:#x} cannot be shared with "
                f"plugin {self.plugin.name!r}: it needs host memory that the plugin can use, "
                f"row-major order, whole bytes, elements, and {ALIGNMENT}-byte alignment"
            )
        return self._put(host, device or self.devices[0], memory, share=share)

    def put_host(self, host: HostArray, device: Device | None = None) -> Buffer:
        """`put` for memory that is described already: shared where possible, else copied."""
        share = self.shares_host_memory and host.shareable and host.dtype.bits >= 8
        return self._put(host, device or self.devices[0], None, share=share)

    def _adopt(self, buffer: Buffer, device: Device | None) -> Buffer:
        if buffer.client is not self:
            raise DataError(
                f"{buffer!r} belongs to another client; bring it over with numpy.asarray"
            )
        return buffer if device in (None, buffer.device) else buffer.copy_to(device)

    def _put(
        self, host: HostArray, device: Device, memory: Memory | None, *, share: bool
    ) -> Buffer:
        self.check_dtype(host.dtype)
        strides = None if share else host.byte_strides
        self.handle.pin()
        try:
            made = self.api.call(
                "Client_BufferFromHostBuffer",
                client=self.handle.pointer,
                data=host.address or _EMPTY_ADDRESS,
                type=host.dtype.code,
                dims=int64s(host.shape),
                num_dims=len(host.shape),
                byte_strides=None if strides is None else int64s(strides),
                num_byte_strides=0 if strides is None else len(strides),
                host_buffer_semantics=_SHARE if share else _COPY_DURING_CALL,
                # A memory space says more than its device; plugins refuse both.
                device=None if memory else device.pointer,
                memory=memory.pointer if memory else None,
            )
            done = Handle(
                self.api, "Event", made.done_with_host_buffer, self.handle, argument="event"
            )
            if share:
                lend(done, host.owner)
            else:
                done.release()
            return Buffer(self, made.buffer, TensorType(host.shape, host.dtype), device)
        finally:
            self.handle.unpin()

    def check_dtype(self, dtype: DType) -> None:
        """Refuse element types that are newer than the plugin, which would crash on them.

        Raises:
            UnsupportedDtype: the plugin's API version does not know the type.
        """
        if self.api.version[1] < dtype.since:
            raise UnsupportedDtype(
                f"{dtype} came with PJRT API 0.{dtype.since}; plugin {self.plugin.name!r} "
                f"implements 0.{self.api.version[1]}"
            )

    def compile(
        self, program: Program | str | bytes, *, options: CompileOptions | None = None
    ) -> Executable:
        """Compile a StableHLO program for this client's devices.

        Args:
            program: a Program, or StableHLO text, bytecode or a portable artifact.
            options: replicas, partitions, flags; one device by default.

        Raises:
            ProgramError: not a program, or not expressible for the plugin's StableHLO version.
            UnsupportedDtype: an argument or result type that the plugin does not know.
            PjrtError: the plugin could not compile it.
        """
        if not isinstance(program, Program):
            program = Program.parse(program)
        options = options or CompileOptions()
        signature = program.signature
        for value in (*signature.parameters, *signature.results):
            self.check_dtype(value.type.dtype)
        code = program.serialize_for(self.plugin.stablehlo_version)
        struct = STRUCTS["PJRT_Program"].new()
        code_memory = ctypes.create_string_buffer(code, len(code))
        struct.code, struct.code_size = ctypes.addressof(code_memory), len(code)
        format_memory = ctypes.create_string_buffer(b"mlir", 4)
        struct.format, struct.format_size = ctypes.addressof(format_memory), 4
        serialized = options.serialize()
        self.handle.pin()
        try:
            made = self.api.call(
                "Client_Compile",
                client=self.handle.pointer,
                program=struct,
                compile_options=serialized,
                compile_options_size=len(serialized),
            )
            return Executable(self, made.executable, signature, program.name, options.portable)
        finally:
            self.handle.unpin()

    def deserialize(self, data: bytes) -> Executable:
        """Load what `Executable.serialize` wrote, for the same plugin and platform version.

        Raises:
            ProgramError: no serialized executable of this bridge, truncated, or made by another
                plugin.
            PjrtError: the plugin refused its part.
        """
        header, blob = unpack(data)
        if header.platform != self.platform:
            raise ProgramError(
                f"the serialized executable {header.name!r} was made for {header.platform!r}, "
                f"this client runs {self.platform!r}"
            )
        signature = Signature.from_json(header.signature)
        self.handle.pin()
        try:
            made = self.api.call(
                "Executable_DeserializeAndLoad",
                client=self.handle.pointer,
                serialized_executable=blob,
                serialized_executable_size=len(blob),
            )
            return Executable(self, made.loaded_executable, signature, header.name, header.portable)
        finally:
            self.handle.unpin()

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

    def __del__(self) -> None:
        handle: Handle | None = getattr(self, "handle", None)
        if handle is not None and not handle.released:
            defer(handle.release)

    def __repr__(self) -> str:
        count = len(self.devices)
        devices = f"{count} device{'s' if count > 1 else ''}"
        return f"<Client of {self.plugin.name!r}, {devices}{', closed' if self.closed else ''}>"


_EMPTY = ctypes.create_string_buffer(ALIGNMENT)
# Plugins dereference the data pointer's check even when there are no elements.
_EMPTY_ADDRESS = ctypes.addressof(_EMPTY)
