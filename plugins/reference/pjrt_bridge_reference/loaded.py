"""PJRT_LoadedExecutable: an executable on the devices of a client."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from pjrt_bridge.abi.implementation_objects import Keep, Status
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge_reference import serialized
from pjrt_bridge_reference.caller_arguments import invalid, raw
from pjrt_bridge_reference.client import Client
from pjrt_bridge_reference.device import Device
from pjrt_bridge_reference.executable import Executable, compile_program, deserialize
from pjrt_bridge_reference.options import write_assignment
from pjrt_bridge_reference.slots import OBJECTS, Slots

SLOTS = Slots()


class LoadedExecutable:
    """An executable, the devices that run it, and the client that they belong to.

    Attributes:
        client: the client.
        executable: the program.
        devices: replicas outermost; none where each execution names its device.
        deleted: runs no more.
    """

    def __init__(self, client: Client, executable: Executable) -> None:
        options = executable.options
        ids = options.assignment
        if ids is None:
            ids = tuple(range(options.devices))
        count = len(client.devices)
        if len(ids) > count or any(not 0 <= id < count for id in ids) or len(set(ids)) < len(ids):
            raise invalid(f"devices {list(ids)} are asked for; the client has {count} devices")
        self.client = client
        self.executable = executable
        self.devices: tuple[Device, ...] = (
            () if options.portable else tuple(client.devices[id] for id in ids)
        )
        self.deleted = False
        self.keep = Keep()

    def check_usable(self) -> None:
        """Refuse to run what was deleted.

        Raises:
            Status: FAILED_PRECONDITION.
        """
        self.client.check_alive()
        if self.deleted:
            raise Status(
                ErrorCode.FAILED_PRECONDITION,
                f"executable {self.executable.program.name!r} was deleted",
            )

    @cached_property
    def device_pointers(self) -> int:
        """Address of the pointers to the devices."""
        return self.keep.pointers([device.pointer for device in self.devices])


def _loaded(args: Any) -> LoadedExecutable:
    return OBJECTS.get(args.executable, LoadedExecutable)


@SLOTS.implements("Client_Compile")
def _compile(args: Any) -> None:
    client = OBJECTS.get(args.client, Client)
    options = raw(args.compile_options, args.compile_options_size, "compile_options")
    loaded = LoadedExecutable(client, compile_program(args.program, options))
    args.executable = OBJECTS.add(loaded)


@SLOTS.implements("Executable_DeserializeAndLoad")
def _deserialize_and_load(args: Any) -> None:
    client = OBJECTS.get(args.client, Client)
    what = "serialized_executable"
    data = raw(args.serialized_executable, args.serialized_executable_size, what)
    options = None
    if args.overridden_serialized_compile_options:
        options = raw(
            args.overridden_serialized_compile_options,
            args.overridden_serialized_compile_options_size,
            "overridden_serialized_compile_options",
        )
    args.loaded_executable = OBJECTS.add(LoadedExecutable(client, deserialize(data, options)))


@SLOTS.implements("LoadedExecutable_Destroy")
def _destroy(args: Any) -> None:
    if args.executable:
        OBJECTS.remove(args.executable, LoadedExecutable).deleted = True


@SLOTS.implements("LoadedExecutable_Delete")
def _delete(args: Any) -> None:
    _loaded(args).deleted = True


@SLOTS.implements("LoadedExecutable_IsDeleted")
def _is_deleted(args: Any) -> None:
    args.is_deleted = _loaded(args).deleted


@SLOTS.implements("LoadedExecutable_GetExecutable")
def _get_executable(args: Any) -> None:
    loaded = OBJECTS.get(args.loaded_executable, LoadedExecutable)
    # A pointer of its own: the caller destroys both, in any order.
    args.executable = OBJECTS.add(loaded.executable)


@SLOTS.implements("LoadedExecutable_AddressableDevices")
def _addressable_devices(args: Any) -> None:
    loaded = _loaded(args)
    args.addressable_devices = loaded.device_pointers
    args.num_addressable_devices = len(loaded.devices)


@SLOTS.implements("LoadedExecutable_Fingerprint")
def _fingerprint(args: Any) -> None:
    found = _loaded(args).executable.fingerprint
    args.executable_fingerprint, args.executable_fingerprint_size = found


@SLOTS.implements("LoadedExecutable_GetDeviceAssignment")
def _get_device_assignment(args: Any) -> None:
    loaded = _loaded(args)
    options = loaded.executable.options
    ids = [device.id for device in loaded.devices] or [0]
    blob = serialized.Blob(write_assignment(options.replicas, options.partitions, ids))
    args.serialized_bytes, args.serialized_bytes_size = blob.text
    args.serialized_device_assignment = OBJECTS.add(blob)
    args.serialized_device_assignment_deleter = serialized.DELETER
