"""PJRT_LoadedExecutable: an executable on the devices of a client."""

from __future__ import annotations

import hashlib
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
        ids: of the devices, replicas outermost.
        owners: the processes that these belong to.
        members: each of these processes once, in order.
        devices: those of this process; none where each execution names its device.
        positions: where these stand among all.
        deleted: runs no more.
    """

    def __init__(self, client: Client, executable: Executable) -> None:
        options = executable.options
        ids = options.assignment
        if ids is None:
            ids = tuple(range(options.devices))
        count = len(client.all_devices)
        if len(ids) > count or any(not 0 <= id < count for id in ids) or len(set(ids)) < len(ids):
            raise invalid(f"devices {list(ids)} are asked for; the client has {count} devices")
        executable.check_here()
        self.client = client
        self.executable = executable
        chosen = [client.all_devices[id] for id in ids]
        self.ids = ids
        self.owners = tuple(device.description.process for device in chosen)
        self.members = tuple(sorted(set(self.owners)))
        own = {at: device for at, device in enumerate(chosen) if isinstance(device, Device)}
        if not own and not options.portable:
            raise invalid(
                f"devices {list(ids)} are asked for, none of which belongs to this process, "
                f"{client.processes.rank}; it has {[device.id for device in client.devices]}"
            )
        self.devices = () if options.portable else tuple(own.values())
        self.positions = tuple(own)
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

    @property
    def spans_processes(self) -> bool:
        """Whether an execution needs what other processes have."""
        return self.executable.parallel and len(self.members) > 1

    @cached_property
    def agreement(self) -> str:
        """What is equal in two processes that have the same program for the same devices."""
        options = self.executable.options
        numbers = f"{options.replicas} {options.partitions} {self.ids}"
        # Of a program that was deserialized only the artifact is as it was.
        artifact = self.executable.program.portable_artifact()
        return hashlib.sha256(artifact + numbers.encode()).hexdigest()

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
    blob = serialized.Blob(write_assignment(options.replicas, options.partitions, list(loaded.ids)))
    args.serialized_bytes, args.serialized_bytes_size = blob.text
    args.serialized_device_assignment = OBJECTS.add(blob)
    args.serialized_device_assignment_deleter = serialized.DELETER
