"""PJRT_TopologyDescription: devices that need not be there, to compile for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pjrt_bridge.abi.implementation_objects import Keep, Status
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge_reference import serialized
from pjrt_bridge_reference.caller_arguments import invalid, options, raw, text
from pjrt_bridge_reference.device import Description
from pjrt_bridge_reference.processes import owners
from pjrt_bridge_reference.slots import OBJECTS, Slots
from pjrt_bridge_reference.version import PLATFORM, PLATFORM_VERSION

SLOTS = Slots()

MOST_DEVICES = 256

_OPTIONS = {"device_count": int}
_MAGIC = b"PJRTREFT"


class Topology:
    """Devices and how they are connected; here they are just numbered.

    Args:
        device_counts: how many devices each process has.
        owned: see below.

    Attributes:
        descriptions: of the devices.
        device_counts: how many of them each process has.
        owned: by a client, which ends it.
    """

    def __init__(self, device_counts: Sequence[int], *, owned: bool = False) -> None:
        device_count = sum(device_counts)
        check_device_count(device_count)
        self.device_counts = tuple(device_counts)
        self.descriptions = [
            Description(id, process) for id, process in enumerate(owners(device_counts))
        ]
        self.owned = owned
        self.keep = Keep()
        self.description_pointers = self.keep.pointers([d.pointer for d in self.descriptions])
        self.name = self.keep.text(PLATFORM)
        self.version = self.keep.text(PLATFORM_VERSION)
        self.attributes = self.keep.named_values({"device_count": device_count})
        self.pointer = OBJECTS.add(self)

    def forget(self) -> None:
        """Make the pointers to the topology and its descriptions invalid."""
        for description in self.descriptions:
            OBJECTS.remove(description.pointer, Description)
        OBJECTS.remove(self.pointer, Topology)


def check_device_count(count: int) -> None:
    """Refuse a topology without devices, or of too many.

    Raises:
        Status: INVALID_ARGUMENT.
    """
    if not 1 <= count <= MOST_DEVICES:
        raise invalid(f"device_count is {count}, expected 1 to {MOST_DEVICES}")


@SLOTS.implements("TopologyDescription_Create")
def _create(args: Any) -> None:
    name = text(args.topology_name, args.topology_name_size, "topology_name")
    given = options(args.create_options, args.num_options, _OPTIONS, "create_options")
    # A name that means nothing is no reason to guess.
    platform, _, count = name.partition(":")
    if platform != PLATFORM or not (count == "" or (count.isascii() and count.isdigit())):
        raise invalid(
            f"topology_name: found {name!r}, expected {PLATFORM}:N for N devices, "
            f"or {PLATFORM} and the option device_count"
        )
    size = int(count) if count else given.get("device_count", 1)
    assert isinstance(size, int)
    args.topology = Topology([size]).pointer


@SLOTS.implements("TopologyDescription_Destroy")
def _destroy(args: Any) -> None:
    if not args.topology:
        return
    topology = OBJECTS.get(args.topology, Topology)
    if topology.owned:
        raise Status(ErrorCode.FAILED_PRECONDITION, "the topology belongs to a client")
    topology.forget()


@SLOTS.implements("TopologyDescription_PlatformName")
def _platform_name(args: Any) -> None:
    args.platform_name, args.platform_name_size = OBJECTS.get(args.topology, Topology).name


@SLOTS.implements("TopologyDescription_PlatformVersion")
def _platform_version(args: Any) -> None:
    topology = OBJECTS.get(args.topology, Topology)
    args.platform_version, args.platform_version_size = topology.version


@SLOTS.implements("TopologyDescription_GetDeviceDescriptions")
def _get_device_descriptions(args: Any) -> None:
    topology = OBJECTS.get(args.topology, Topology)
    args.descriptions = topology.description_pointers
    args.num_descriptions = len(topology.descriptions)


@SLOTS.implements("TopologyDescription_Attributes")
def _attributes(args: Any) -> None:
    args.attributes, args.num_attributes = OBJECTS.get(args.topology, Topology).attributes


@SLOTS.implements("TopologyDescription_Serialize")
def _serialize(args: Any) -> None:
    topology = OBJECTS.get(args.topology, Topology)
    header = {"device_counts": topology.device_counts}
    blob = serialized.Blob(serialized.pack(_MAGIC, json.dumps(header).encode()))
    args.serialized_bytes, args.serialized_bytes_size = blob.text
    args.serialized_topology = OBJECTS.add(blob)
    args.serialized_topology_deleter = serialized.DELETER


@SLOTS.implements("TopologyDescription_Deserialize")
def _deserialize(args: Any) -> None:
    what = "serialized_topology"
    data = raw(args.serialized_topology, args.serialized_topology_size, what)
    (header,) = serialized.unpack(_MAGIC, data, what, parts=1)
    args.topology = Topology(json.loads(header)["device_counts"]).pointer
