"""Topology: devices by their description, to compile for hardware that is not in the machine."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pjrt_bridge.abi.values import (
    NamedValue,
    decode_named_values,
    encode_named_values,
    free,
    read_pointers,
    text,
    utf8,
)
from pjrt_bridge.errors import OptionError, PjrtError, PluginIncompatible
from pjrt_bridge.runtime.compile import compiling
from pjrt_bridge.runtime.compile.options import CompileOptions
from pjrt_bridge.runtime.objects.accessors import Extensible
from pjrt_bridge.runtime.objects.compiled import CompiledExecutable
from pjrt_bridge.runtime.objects.create_options import check_topology_options
from pjrt_bridge.runtime.objects.device import DeviceDescription, memory_limit
from pjrt_bridge.runtime.ownership.handles import Finalizer, Handle, release_soon
from pjrt_bridge.stablehlo.program.program import Program

if TYPE_CHECKING:
    from pjrt_bridge.runtime.objects.client import Client
    from pjrt_bridge.runtime.objects.plugin import Plugin

_OWN = "TopologyDescription"
"""Kind of the handle of a topology that no client owns."""


class Topology(Extensible):
    """The devices of a system, described and not used.

    `Plugin.topology` makes one from a name, for devices that need not be there; `Client.topology`
    is that of a client. It can be asked for extensions as a client can.

    Attributes:
        name: the plugin's name of the topology, such as "v5e:2x2".
        platform_name: the plugin's name of the platform, such as "tpu".
        platform_version: the plugin's account of its version, or of the device.
        devices: all devices, of all processes.
        attributes: the plugin's description of the whole.
    """

    def __init__(self, plugin: Plugin, name: str, handle: Handle, pointer: int) -> None:
        super().__init__(plugin)
        self.name = name
        self.handle = handle
        self.pointer = pointer
        with handle.held():
            self._describe()

    @classmethod
    def create(
        cls, plugin: Plugin, name: str, options: Mapping[str, NamedValue] | None = None
    ) -> Topology:
        """The topology that a plugin has under a name; see `Plugin.topology`."""
        checked = check_topology_options(options or {}, plugin=plugin.name)
        if not isinstance(name, str) or not name.strip():
            # libtpu takes the empty name for a TPU v2.
            raise OptionError(
                f"plugin {plugin.name!r}: found {name!r} for a topology, expected a name such as "
                "'v5e:2x2'"
            )
        api = plugin.api
        encoded, keep = encode_named_values(checked)
        called = utf8(name, "name of a topology")
        made = api.call(
            "TopologyDescription_Create",
            topology_name=called,
            topology_name_size=len(called),
            create_options=encoded,
            num_options=len(checked),
        )
        del keep
        handle = Handle(api, _OWN, made.topology, None, argument="topology")
        try:
            return cls(plugin, name, handle, handle.pointer)
        except BaseException:
            handle.release()
            raise

    @classmethod
    def of_client(cls, client: Client) -> Topology:
        """The topology of a client, which owns it."""
        with client.handle.held() as pointer:
            found = client.api.call("Client_TopologyDescription", client=pointer)
        if not found.topology:
            raise _missing(client.plugin, "Client_TopologyDescription")
        return cls(client.plugin, client.platform_name, client.handle, found.topology)

    def _describe(self) -> None:
        api, pointer = self.api, self.pointer
        name = api.call("TopologyDescription_PlatformName", topology=pointer)
        self.platform_name = text(name.platform_name, name.platform_name_size)
        version = api.call("TopologyDescription_PlatformVersion", topology=pointer)
        self.platform_version = text(version.platform_version, version.platform_version_size)
        listed = api.call("TopologyDescription_GetDeviceDescriptions", topology=pointer)
        self.devices = tuple(
            DeviceDescription(api, about)
            for about in read_pointers(listed.descriptions, listed.num_descriptions)
        )
        if not self.devices:
            raise _missing(self.plugin, "TopologyDescription_GetDeviceDescriptions")
        self.attributes: Mapping[str, NamedValue] = self._attributes()

    def _attributes(self) -> dict[str, NamedValue]:
        try:
            found = self.api.call("TopologyDescription_Attributes", topology=self.pointer)
        except PjrtError:
            return {}
        return decode_named_values(found.attributes, found.num_attributes)

    @property
    def platform(self) -> str:
        """Name and version of the platform, as one text."""
        return f"{self.platform_name} {self.platform_version}"

    @property
    def memory_limit(self) -> int | None:
        """Bytes that a program can have on each device; None where the plugin does not tell."""
        return memory_limit(self.devices)

    def compile(
        self, program: Program | str | bytes, *, options: CompileOptions | None = None
    ) -> CompiledExecutable:
        """Compile a StableHLO program for these devices, which need not be there.

        Args:
            program: a Program, or StableHLO text, bytecode or a portable artifact.
            options: replicas, partitions, flags; one device by default.

        Raises:
            ProgramError: not a program, not expressible for the plugin's StableHLO version, or
                packed elements in a custom layout.
            UnsupportedDtype: an argument or result type that the plugin does not know.
            OptionError: more devices are asked for than the topology has.
            Unimplemented: the plugin compiles for its own client's devices only.
            PjrtError: the plugin could not compile it.
        """
        program, checked = compiling.prepared(self, len(self.devices), program, options)
        code = program.serialize_for(self.plugin.stablehlo_version)
        serialized = checked.serialize()
        with self.handle.held():
            made = compiling.ask(self, "Compile", program, code, serialized, topology=self.pointer)
            return CompiledExecutable(
                self, made.executable, program.signature, program.name, portable=checked.portable
            )

    def serialize(self) -> bytes:
        """The description in the plugin's own format.

        Raises:
            Unimplemented: the plugin has none.
            Closed: the topology, or its client, was closed.
        """
        with self.handle.held():
            found = self.api.call("TopologyDescription_Serialize", topology=self.pointer)
            if not found.serialized_bytes:
                raise _missing(self.plugin, "TopologyDescription_Serialize")
            data = ctypes.string_at(found.serialized_bytes, found.serialized_bytes_size)
            if found.serialized_topology_deleter:
                free(found.serialized_topology_deleter, found.serialized_topology)
            return data

    def fingerprint(self) -> int:
        """The plugin's fingerprint of the description (PJRT API 0.101).

        Raises:
            Unimplemented: the plugin makes none.
            Closed: the topology, or its client, was closed.
        """
        with self.handle.held():
            found = self.api.call("TopologyDescription_Fingerprint", topology=self.pointer)
            return int(found.fingerprint)

    def close(self) -> None:
        """End the description and the programs that were compiled for it; their bytes stay.

        A client's own topology ends with the client, and not here.
        """
        if self.handle.kind == _OWN:
            self.handle.release()

    def __enter__(self) -> Topology:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self, release_soon: Finalizer = release_soon, own: str = _OWN) -> None:
        handle: Handle | None = getattr(self, "handle", None)
        if handle is not None and handle.kind == own:
            release_soon(handle)

    def __repr__(self) -> str:
        count = len(self.devices)
        return f"<Topology {self.name!r}, {count} device{'' if count == 1 else 's'}>"


def _missing(plugin: Plugin, function: str) -> PluginIncompatible:
    return PluginIncompatible(f"plugin {plugin.name!r}: {function} gave nothing, but no error")
