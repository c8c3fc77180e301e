"""ClientCore: the devices of a plugin, and what is known of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

from pjrt_bridge.abi.values import encode_named_values, read_pointers, text
from pjrt_bridge.errors import ClientLost, DataError, OptionError, PjrtError, PluginIncompatible
from pjrt_bridge.runtime.core import platforms
from pjrt_bridge.runtime.core.accessors import Extensible
from pjrt_bridge.runtime.core.create_options import check_client_options
from pjrt_bridge.runtime.core.device import Device, DeviceDescription, Memory
from pjrt_bridge.runtime.core.layout import Layout, LayoutHandling
from pjrt_bridge.runtime.core.platforms import PlatformSpec
from pjrt_bridge.runtime.core.plugin_core import PluginCore
from pjrt_bridge.runtime.keyvalue import KeyValueStore, Registration, check_store
from pjrt_bridge.runtime.ownership.handles import Finalizer, Handle, release_soon
from pjrt_bridge.runtime.ownership.signals import blocked
from pjrt_bridge.wrong_arguments import checked_methods, wrong


@checked_methods
class ClientCore(Extensible, ABC):
    """The devices of one plugin, as buffers and executables know them.

    `Client`, the only subclass, adds what is made on the devices.

    Attributes:
        plugin: the plugin.
        options: create options, checked.
        platform_name: the plugin's name of the platform, such as "cpu".
        platform_version: the plugin's account of its version.
        devices: devices of this process, in the plugin's order.
        process_index: number of this process among those that the client spans.
        all_devices: those of all processes, in the plugin's order: a Device where it is one of this
            process, else its description.
        num_devices: devices of all processes.
        memories: memory spaces of this process.
        shares_host_memory: the plugin was seen to use host memory in place.
        lost: why the client cannot run programs any more; None where it can.
        store: what all processes see that the client spans; None for a client of this process.
        api: the plugin's function table.
        handle: the plugin's object.

    Raises:
        OptionError: an option that the plugin would abort on, or that gives no devices; no store.
        PjrtError: the plugin could not create the client, because a process is missing, say.
    """

    shares_host_memory: bool

    def __init__(
        self,
        plugin: PluginCore,
        options: Mapping[str, Any] | None = None,
        *,
        store: KeyValueStore | None = None,
    ) -> None:
        super().__init__(plugin)
        self.lost: str | None = None
        self.store = store
        api = self.api
        self.options = check_client_options(
            {} if options is None else options, plugin.option_types, plugin=plugin.name
        )
        registration = None
        if store is not None:
            check_store(store, f"store of a client of plugin {plugin.name!r}")
            registration = Registration(store)
        encoded, keep = encode_named_values(self.options)
        self.handle = Handle(api, "Client", None)
        try:
            self.handle.keeps = registration
            with blocked():
                self.handle.make(
                    "Client_Create",
                    create_options=encoded,
                    num_options=len(self.options),
                    **(registration.arguments if registration else {}),
                )
            del keep
            self._describe()
        except BaseException:
            self.close()
            if registration is not None and registration.interrupt is not None:
                raise registration.interrupt from None
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
        self.all_devices = self._all_devices()
        self.num_devices = len(self.all_devices)
        if not self.devices:
            raise OptionError(
                f"plugin {self.plugin.name!r} made a client without devices from the options "
                f"{self.options}"
            )

    def _memory_pointers(self) -> tuple[int, ...]:
        try:
            found = self.api.call("Client_AddressableMemories", client=self.handle.pointer)
        except PjrtError:
            return ()
        return read_pointers(found.addressable_memories, found.num_addressable_memories)

    def _all_devices(self) -> tuple[DeviceDescription, ...]:
        try:
            listed = self.api.call("Client_Devices", client=self.handle.pointer)
        except PjrtError:
            return self.devices
        return tuple(
            self._devices.get(address) or DeviceDescription.of_device(self.api, address)
            for address in read_pointers(listed.devices, listed.num_devices)
        )

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.handle.released

    def device(self, id: int) -> Device:
        """The device of this process with a global id.

        Raises:
            DataError: there is none; the message lists those there are.
        """
        if type(id) is not int:
            raise DataError(wrong(f"client of {self.plugin.name!r}: device", id, "an int"))
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

    @property
    @abstractmethod
    def layout_handling(self) -> LayoutHandling:
        """What the plugin does with elements that are to come into a custom layout."""

    @property
    @abstractmethod
    def reads_in_memory_order(self) -> bool:
        """Whether the plugin gives elements to the host in the order of their layout.

        Else it gives them in row-major order.
        """

    @cached_property
    def platform_spec(self) -> PlatformSpec:
        """What an installed package states of the platform and this version of the PJRT API."""
        return platforms.find(self.platform_name, self.plugin.api_version)

    @property
    def platform(self) -> str:
        """Name and version of the platform, as one text."""
        return f"{self.platform_name} {self.platform_version}"

    def check_alive(self) -> None:
        """Check that the client can run programs.

        Raises:
            ClientLost: its devices may wait for each other for good.
        """
        if self.lost is not None:
            raise ClientLost(self.lost)

    def lose(self, program: str, devices: int, error: PjrtError) -> None:
        """Note that a program could not be started on all of its devices.

        Those on which it was started wait for the others in the program's collective operations,
        and whatever is started after it waits for them.
        """
        self.lost = (
            f"client of plugin {self.plugin.name!r}: {program!r} could not be started on all of "
            f"its {devices} devices, and some may wait for the others for good ({error}); make a "
            "new client (`Plugin.client` gives one), and its arrays anew"
        )

    def close(self) -> None:
        """End the client and everything made on it; memory that is viewed elsewhere stays valid."""
        self.handle.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self, release_soon: Finalizer = release_soon) -> None:
        release_soon(getattr(self, "handle", None))

    def __repr__(self) -> str:
        count = len(self.devices)
        devices = f"{count} device{'s' if count > 1 else ''}{', closed' if self.closed else ''}"
        return f"<{type(self).__name__} of {self.plugin.name!r}, {devices}>"
