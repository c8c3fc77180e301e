"""Topology: devices by their description, to compile for devices that are not there."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from pjrt_bridge.abi.values import (
    NamedValue,
    decode_named_values,
    encode_named_values,
    free,
    read_pointers,
    text,
    utf8,
)
from pjrt_bridge.errors import Closed, OptionError, PjrtError, PluginIncompatible
from pjrt_bridge.runtime.core import description, platforms
from pjrt_bridge.runtime.core.accessors import Extensible
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.compile_options import CompileOptions
from pjrt_bridge.runtime.core.create_options import check_topology_options
from pjrt_bridge.runtime.core.device import DeviceDescription, memory_limit
from pjrt_bridge.runtime.core.plugin_core import PluginCore
from pjrt_bridge.runtime.objects import compiling
from pjrt_bridge.runtime.objects.compiled import Compiled
from pjrt_bridge.runtime.ownership.handles import Finalizer, Handle, release_soon
from pjrt_bridge.runtime.ownership.kinds import require_kind
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import Signature
from pjrt_bridge.wrong_arguments import checked_methods, require

_OWN = "TopologyDescription"
"""Kind of the handle of a topology that no client owns."""


@checked_methods
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

    def __init__(self, plugin: PluginCore, name: str, handle: Handle, pointer: int) -> None:
        require(plugin, PluginCore, "Topology: plugin")
        require_kind(handle, (_OWN, "Client"), "Topology: handle")
        super().__init__(plugin)
        self.name = name
        self.handle = handle
        self.pointer = pointer
        with handle.held():
            self._describe()

    @classmethod
    def create(
        cls, plugin: PluginCore, name: str, options: Mapping[str, NamedValue] | None = None
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
        with Handle(api, _OWN, None) as handle:
            handle.make(
                "TopologyDescription_Create",
                topology_name=called,
                topology_name_size=len(called),
                create_options=encoded,
                num_options=len(checked),
            )
            del keep
            return cls(plugin, name, handle, handle.pointer)

    @classmethod
    def of_client(cls, client: ClientCore) -> Topology:
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
            ProgramError: not a program, not expressible for the plugin's StableHLO version,
                packed elements in a custom layout, or a call on which it would end the process.
            UnsupportedDtype: an argument or result type that the plugin does not know, or a
                constant on which it would end the process.
            OptionError: more devices are asked for than the topology has.
            Unimplemented: the plugin compiles for its own client's devices only.
            PjrtError: the plugin could not compile it.
        """
        program, checked = compiling.prepared(self, len(self.devices), program, options)
        known = platforms.find(self.platform_name, self.plugin.api_version)
        compiling.check_for(program, known, plugin=self.plugin.name)
        checked = replace(checked, env={**known.ahead_flags, **known.compiler_flags, **checked.env})
        code = program.serialize_for(self.plugin.stablehlo_version)
        serialized = checked.serialize()
        with self.handle.held(), Handle(self.api, "Executable", self.handle) as made:
            compiling.ask(self, made, "Compile", program, code, serialized, topology=self.pointer)
            return CompiledExecutable(
                self, made, program.signature, program.name, portable=checked.portable
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


class CompiledExecutable(Compiled):
    """A program that was compiled for a topology, and is not loaded.

    `serialize` gives its bytes; `Client.deserialize` loads them where the devices are.

    Attributes:
        topology: the devices that it was compiled for.
    """

    def __init__(
        self, topology: Topology, handle: Handle, signature: Signature, name: str, *, portable: bool
    ) -> None:
        require(topology, Topology, "CompiledExecutable: topology")
        require(signature, Signature, "CompiledExecutable: signature")
        require_kind(handle, ("Executable",), "CompiledExecutable: handle")
        super().__init__(topology.api, signature, name, portable=portable)
        self.topology = topology
        self._handle = handle
        with handle.held() as pointer:
            # A plugin that gives other results than the program has would be noticed only on the
            # machine with the devices.
            sharded = description.partitions(self.api, pointer) > 1
            self.outputs = description.result_types(
                self.api, pointer, name, signature, sharded=sharded
            )

    @property
    def platform(self) -> str:
        """Name and version of the topology's platform."""
        return self.topology.platform

    @property
    def target(self) -> str:
        """Name of the topology."""
        return self.topology.name

    def needs(self) -> dict[str, str | None]:
        """What the bytes of the program need where they are loaded: fields of `Header`."""
        return {}

    @property
    def memory_limit(self) -> int | None:
        """Bytes that a program can have on each device; None where the plugin does not tell."""
        return self.topology.memory_limit

    @contextmanager
    def held(self) -> Iterator[int]:
        """The plugin's PJRT_Executable, kept during a `with` block.

        Raises:
            Closed: the program was closed.
        """
        try:
            self._handle.pin()
        except Closed:
            raise Closed(f"executable {self.name!r} for {self.target!r} was closed") from None
        try:
            yield self._handle.pointer
        finally:
            self._handle.unpin()

    def close(self) -> None:
        """Give the program back to the plugin; bytes that were taken stay."""
        self._handle.release()

    def __enter__(self) -> CompiledExecutable:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self, release_soon: Finalizer = release_soon) -> None:
        release_soon(getattr(self, "_handle", None))

    def __repr__(self) -> str:
        return f"<CompiledExecutable {self.name!r} for {self.target!r}>"


def _missing(plugin: PluginCore, function: str) -> PluginIncompatible:
    return PluginIncompatible(f"plugin {plugin.name!r}: {function} gave nothing, but no error")
