"""Client: a session with a plugin, which makes buffers and executables on its devices."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from pjrt_bridge.errors import InvalidArgument, NotFound, Unimplemented
from pjrt_bridge.runtime.buffers import putting
from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.compile_options import CompileOptions, Override
from pjrt_bridge.runtime.core.device import Device, Memory
from pjrt_bridge.runtime.core.layout import Layout, LayoutHandling
from pjrt_bridge.runtime.core.plugin_core import PluginCore
from pjrt_bridge.runtime.keyvalue import KeyValueStore
from pjrt_bridge.runtime.objects import compiling, trials
from pjrt_bridge.runtime.objects.executable import Executable
from pjrt_bridge.runtime.objects.topology import Topology
from pjrt_bridge.runtime.objects.trials import shares_host_memory
from pjrt_bridge.runtime.transfers.host import HostArray
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.wrong_arguments import checked_methods, require


@checked_methods
class Client(ClientCore):
    """The devices of one plugin.

    `Plugin.client` gives the same client for the same options; the constructor always makes a new
    one. Buffers and executables keep their client alive; closing the client ends them all. What is
    known of the devices is described in `ClientCore`.

    Args:
        plugin: the plugin.
        options: create options.
        store: what the processes see that the client is to span; see `runtime.keyvalue`.
    """

    def __init__(
        self,
        plugin: PluginCore,
        options: Mapping[str, Any] | None = None,
        *,
        store: KeyValueStore | None = None,
    ) -> None:
        super().__init__(plugin, options, store=store)
        try:
            self.shares_host_memory = shares_host_memory(self)
        except BaseException:
            self.close()
            raise
        _open.add(self)

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
        return putting.put(self, data, device, memory, layout, copy)

    def put_host(
        self, host: HostArray, device: Device | None = None, *, writable: bool = False
    ) -> Buffer:
        """`put` for memory that is described already: shared where possible, else copied.

        With `writable` a program to which the buffer is donated writes its result there.

        Raises:
            ArgumentError: `host` or `writable` is of another kind.
            DataError: a device of another client.
        """
        require(writable, bool, "Client.put_host: writable")
        return putting.put_host(self, host, self.place(device, None), writable=writable)

    def compile(
        self, program: Program | str | bytes, *, options: CompileOptions | None = None
    ) -> Executable:
        """Compile a StableHLO program for this client's devices.

        Args:
            program: a Program, or StableHLO text, bytecode or a portable artifact.
            options: replicas, partitions, flags; one device by default, the first of this process.

        Raises:
            ProgramError: not a program, not expressible for the plugin's StableHLO version,
                packed elements in a custom layout, or a call on which it would end the process.
            UnsupportedDtype: an argument or result type that the plugin does not know, or a
                constant on which it would end the process.
            PjrtError: the plugin could not compile it.
        """
        program, checked = compiling.prepared(self, self.num_devices, program, options)
        if checked.num_devices == 1 and self.num_devices > len(self.devices):
            checked = self._on_own_device(checked)
        known = self.platform_spec
        compiling.check_for(program, known, plugin=self.plugin.name)
        tuning = {**self._accepted(known.tuning_flags), **self._suiting(program)}
        flags = {**tuning, **self.safe_flags, **checked.env}
        return compiling.compile_program(self, program, replace(checked, env=flags))

    def _on_own_device(self, options: CompileOptions) -> CompileOptions:
        """Options for one device: where they name none, plugins take the first of all processes."""
        if options.portable or options.device_assignment is not None:
            return options
        return replace(options, device_assignment=[[self.devices[0].id]])

    @cached_property
    def layout_handling(self) -> LayoutHandling:
        """What the plugin does with elements that are to come into a custom layout; tried once."""
        return trials.find_layout_handling(self, self.compile)

    @cached_property
    def reads_in_memory_order(self) -> bool:
        """Whether the plugin gives elements to the host in the order of their layout; tried once.

        Else it gives them in row-major order.
        """
        return trials.reads_in_memory_order(self.compile)

    @cached_property
    def safe_flags(self) -> Mapping[str, Override]:
        """Compiler flags that every compilation gets, see `PlatformSpec.compiler_flags`."""
        self.platform_spec.warn()
        return self._accepted(self.platform_spec.compiler_flags)

    def _accepted(self, flags: Mapping[str, Override]) -> Mapping[str, Override]:
        """Those of some compiler flags of the platform that the plugin accepts."""
        return {name: value for name, value in flags.items() if name in self._accepted_flags}

    def _suiting(self, program: Program) -> Mapping[str, Override]:
        """`PlatformSpec.program_flags` for a program; none of them if the plugin refuses them."""
        suiting = self.platform_spec.program_flags
        flags = {} if suiting is None else suiting(program)
        if not flags:
            return flags
        asked = tuple(sorted(flags.items()))
        if asked not in self._answers:
            self._answers[asked] = self._compiles_with(flags)
        return flags if self._answers[asked] else {}

    @cached_property
    def _answers(self) -> dict[tuple[tuple[str, Override], ...], bool]:
        """Whether the plugin accepts flags of `PlatformSpec.program_flags`, by these flags."""
        return {}

    @cached_property
    def _accepted_flags(self) -> Mapping[str, Override]:
        platform = self.platform_spec
        flags = {**platform.tuning_flags, **platform.compiler_flags}
        if not flags or self._compiles_with(flags):
            return flags
        return {name: value for name, value in flags.items() if self._compiles_with({name: value})}

    def _compiles_with(self, flags: Mapping[str, Override]) -> bool:
        """Whether the plugin compiles with these compiler flags."""
        try:
            options = CompileOptions(env=flags)
            compiling.compile_program(self, Program.parse(_NOTHING), options).close()
        except (InvalidArgument, NotFound, Unimplemented):
            # It does not know them. What else may fail says nothing about the flags.
            return False
        return True

    def deserialize(self, data: bytes | bytearray | memoryview) -> Executable:
        """Load what `serialize` of an executable wrote, for the same plugin and platform version.

        Of a program that was compiled for a topology only the platform's name is compared here: its
        version is that of a device in some plugins. The plugin checks the rest. What is loaded is
        native code: load only what comes from a source whose programs you would run.

        Raises:
            ProgramError: no serialized executable of this bridge, truncated, or made by another
                build of the plugin or for a processor that can do more.
            PjrtError: the plugin refused its part.
        """
        return compiling.load(self, data)

    @cached_property
    def topology(self) -> Topology:
        """The description of all devices; it ends with the client.

        Raises:
            Unimplemented: the plugin tells none.
            Closed: the client was closed.
        """
        return Topology.of_client(self)


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
