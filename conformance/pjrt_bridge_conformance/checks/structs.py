"""Sizes of args structs: how a plugin of one API version meets callers of another.

An older caller passes a smaller struct than the plugin knows, a newer one a larger struct. The
plugin has to look at `struct_size` before it reads or writes a field.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pjrt_bridge_conformance import raw
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import ADD, refused

STRUCTS = Group("abi")

_HEADER = 16

_FUNCTIONS = (
    "Client_PlatformName",
    "Client_PlatformVersion",
    "Client_ProcessIndex",
    "Client_Devices",
    "Client_AddressableDevices",
    "Client_AddressableMemories",
    "Client_LookupDevice",
    "Client_TopologyDescription",
    "DeviceDescription_Id",
    "DeviceDescription_ProcessIndex",
    "DeviceDescription_Attributes",
    "DeviceDescription_Kind",
    "DeviceDescription_DebugString",
    "DeviceDescription_ToString",
    "Device_GetDescription",
    "Device_IsAddressable",
    "Device_LocalHardwareId",
    "Device_AddressableMemories",
    "Device_DefaultMemory",
    "Memory_Id",
    "Memory_Kind",
    "Memory_ToString",
    "Memory_AddressableByDevices",
    "Buffer_ElementType",
    "Buffer_Dimensions",
    "Buffer_UnpaddedDimensions",
    "Buffer_DynamicDimensionIndices",
    "Buffer_GetMemoryLayout",
    "Buffer_OnDeviceSizeInBytes",
    "Buffer_Device",
    "Buffer_Memory",
    "Buffer_IsDeleted",
    "Buffer_IsOnCpu",
    "Event_IsReady",
    "Event_Await",
    "Executable_Name",
    "Executable_NumReplicas",
    "Executable_NumPartitions",
    "Executable_NumOutputs",
    "Executable_OutputElementTypes",
    "LoadedExecutable_AddressableDevices",
    "LoadedExecutable_IsDeleted",
)


@contextmanager
def _values(context: Context, function: str) -> Iterator[dict[str, Any]]:
    """Arguments that the function accepts."""
    client, kind = context.client, function.partition("_")[0]
    api, device = client.api, client.devices[0]
    if kind == "Client":
        more = {"id": device.id} if function == "Client_LookupDevice" else {}
        yield {"client": client.handle.pointer, **more}
    elif kind == "DeviceDescription":
        about = api.call("Device_GetDescription", device=device.pointer)
        yield {"device_description": about.device_description}
    elif kind == "Device":
        yield {"device": device.pointer}
    elif kind == "Memory":
        raw.need(api, "Device_DefaultMemory")
        yield {"memory": api.call("Device_DefaultMemory", device=device.pointer).memory}
    elif kind in ("Buffer", "Event"):
        with client.put(np.ones(3, np.float32)) as buffer, buffer.held() as pointer:
            if kind == "Buffer":
                yield {"buffer": pointer}
                return
            event = api.call("Buffer_ReadyEvent", buffer=pointer).event
            try:
                yield {"event": event}
            finally:
                api.call("Event_Destroy", event=event)
    else:
        with raw.compiled(client, ADD) as (loaded, inner):
            yield {"executable": loaded if kind == "LoadedExecutable" else inner}


@STRUCTS.each(_FUNCTIONS)
def small_struct(context: Context, function: str) -> None:
    """An args struct that ends before its first field is refused."""
    with _values(context, function) as values:
        refused(lambda: raw.call(context.client.api, function, _HEADER, **values), function)


@STRUCTS.each(_FUNCTIONS)
def large_struct(context: Context, function: str) -> None:
    """An args struct that is larger than the plugin knows is accepted."""
    with _values(context, function) as values:
        raw.call(context.client.api, function, raw.size_of(function) + 64, **values)
