"""The function table, the plugin's attributes and its errors; no client is needed for these."""

from __future__ import annotations

import ctypes

from pjrt_bridge.abi.functions import FIRST_OFFSET, FUNCTIONS, SLOTS_0_81, offset_of
from pjrt_bridge.abi.values import decode_named_values
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge_conformance import raw
from pjrt_bridge_conformance.check import Group, Needs
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import equal, refused, require
from pjrt_bridge_conformance.outcomes import Fail, Unsupported

LOADING = Group("abi", needs=Needs.NOTHING)
ABI = Group("abi", needs=Needs.LIBRARY)

_NULL_IS_FINE = {
    "Error_Destroy": "error",
    "Event_Destroy": "event",
    "Client_Destroy": "client",
    "Executable_Destroy": "executable",
    "LoadedExecutable_Destroy": "executable",
    "Buffer_Destroy": "buffer",
    "ExecuteContext_Destroy": "context",
    "TopologyDescription_Destroy": "topology",
    "AsyncHostToDeviceTransferManager_Destroy": "transfer_manager",
    "CopyToDeviceStream_Destroy": "stream",
}


@LOADING.check
def load(context: Context) -> None:
    """The library loads, its table is plausible, and PJRT_Plugin_Initialize succeeds."""
    _ = context.plugin


@ABI.check
def same_table(context: Context) -> None:
    """GetPjrtApi returns the same table every time."""
    plugin = context.plugin
    if plugin.library is None:
        raise Unsupported("the plugin was given by the address of its table")
    entry = ctypes.CDLL(str(plugin.library)).GetPjrtApi
    entry.restype = ctypes.c_void_p
    equal({entry() for _ in range(3)}, {plugin.api.address}, "addresses of the table")


@ABI.check
def size_fits_version(context: Context) -> None:
    """The table is as large as the functions of the API version that it states."""
    api = context.plugin.api
    needed = FIRST_OFFSET + 8 * SLOTS_0_81
    minor = api.version[1]
    require(
        minor < 81 or api.struct_size >= needed,
        f"API 0.{minor} has {SLOTS_0_81} functions or more, {needed} bytes; "
        f"the table has {api.struct_size}",
    )


@ABI.check
def slots(context: Context) -> None:
    """Every slot within the table's size holds a function."""
    api = context.plugin.api
    inside = [name for name in FUNCTIONS if offset_of(name) + 8 <= api.struct_size]
    empty = [name for name in inside if not api.has(name)]
    if empty:
        raise Unsupported(f"{len(empty)} of {len(inside)} slots are NULL: {', '.join(empty)}")


@ABI.check
def version_struct(context: Context) -> None:
    """The version inside the table states the size of its own struct."""
    size = ctypes.c_size_t.from_address(context.plugin.api.address + 16).value
    require(size >= 24, f"PJRT_Api_Version.struct_size: found {size}, expected 24 or more")


@ABI.check
def attribute_names(context: Context) -> None:
    """The plugin's attributes have names, each its own, and none is of an unknown type."""
    raw.need(context.plugin.api, "Plugin_Attributes")
    found = context.plugin.api.call("Plugin_Attributes")
    decoded = decode_named_values(found.attributes, found.num_attributes)
    require(all(decoded), "an attribute has no name")
    # A mapping holds each name once, and leaves out what it cannot read.
    equal(len(decoded), found.num_attributes, "readable attributes with names of their own")


@ABI.check
def attributes_stay(context: Context) -> None:
    """The plugin's attributes are the same each time."""
    api = context.plugin.api
    raw.need(api, "Plugin_Attributes")
    found = api.call("Plugin_Attributes")
    again = decode_named_values(found.attributes, found.num_attributes)
    equal(again, dict(context.plugin.attributes), "attributes")


@ABI.check
def stablehlo_version(context: Context) -> None:
    """The plugin states the StableHLO versions that it reads, the oldest and the newest."""
    attributes = context.plugin.attributes
    names = ("stablehlo_minimum_version", "stablehlo_current_version")
    found = [attributes.get(name) for name in names]
    if found == [None, None]:
        raise Unsupported("no stablehlo_current_version; callers write the oldest version then")
    for name, version in zip(names, found, strict=True):
        if not (isinstance(version, tuple) and len(version) == 3 and min(version) >= 0):
            raise Fail(f"{name}: found {version!r}, expected three numbers")
    require(found[0] <= found[1], f"{names[0]} {found[0]} is newer than {names[1]} {found[1]}")  # type: ignore[operator]


@ABI.check
def error_text(context: Context) -> None:
    """An error has a code of the interface and a text."""
    error = refused(
        lambda: raw.call(context.plugin.api, "Plugin_Attributes", 1), "a struct of one byte"
    )
    require(
        isinstance(error.code, ErrorCode) and error.code is not ErrorCode.OK,
        f"code of an error: found {error.code}, expected one of {list(ErrorCode)[1:]}",
    )


@ABI.check
def many_errors(context: Context) -> None:
    """Errors can be made, read and destroyed many times, and say the same."""
    api = context.plugin.api
    texts = {
        refused(lambda: raw.call(api, "Plugin_Attributes", 1), "a struct of one byte").message
        for _ in range(1000)
    }
    equal(len(texts), 1, "texts of one error")


@ABI.each(_NULL_IS_FINE)
def destroy_null(context: Context, function: str) -> None:
    """Destroying NULL is allowed, as pjrt_c_api.h says, and does nothing."""
    raw.need(context.plugin.api, function)
    context.plugin.api.call(function, **{_NULL_IS_FINE[function]: None})
