"""Plugins with one fault each: the suite finds it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pjrt_bridge.runtime import Plugin
from pjrt_bridge_conformance import Context, Status, suite
from pjrt_bridge_conformance.context import Subject
from pjrt_bridge_conformance.worker import judge
from tests.faults.replaced import Replaced
from tests.plugins import cpu_plugin

CHECKS = suite()
Function = Callable[[Any], int | None]


def context(plugin: Plugin, name: str, fault: Callable[[Function], Function]) -> Context:
    """What checks are given of a plugin with a fault in one function.

    No event may stay without an end here: the process would wait for it when it exits.
    """
    table = Replaced(
        plugin.api.address,
        {name: lambda table, args: fault(partial(table.real, name))(args)},
    )
    made = Context(Subject("cpu"))
    vars(made)["plugin"] = table.plugin("faulty")
    return made


def corrupted(original: Function) -> Function:
    def function(args: Any) -> int | None:
        error = original(args)
        if not error and args.dst and args.dst_size:
            # Before its end the copy would mend what is spoilt here.
            cpu_plugin().api.call("Event_Await", event=args.event)
            original_byte = ctypes.c_ubyte.from_address(args.dst)
            original_byte.value ^= 1
        return error

    return function


def sizes_ignored(original: Function) -> Function:
    def function(args: Any) -> int | None:
        args.struct_size = 64
        return original(args)

    return function


def silent(original: Function) -> Function:
    def function(args: Any) -> int | None:
        original(args)
        args.message_size = 0
        return None

    return function


def fixed(**values: Any) -> Callable[[Function], Function]:
    def fault(original: Function) -> Function:
        def function(args: Any) -> int | None:
            error = original(args)
            for name, value in values.items():
                setattr(args, name, value)
            return error

        return function

    return fault


FAULTS: dict[str, tuple[str, Callable[[Function], Function], str]] = {
    "wrong data": ("Buffer_ToHostBuffer", corrupted, "data.put_get.int32"),
    "sizes ignored": ("Buffer_IsDeleted", sizes_ignored, "abi.small_struct.Buffer_IsDeleted"),
    "no text": ("Error_Message", silent, "errors.program.empty"),
    "an unknown code": ("Error_GetCode", fixed(code=77), "abi.error_text"),
    "wrong type": ("Buffer_ElementType", fixed(type=3), "data.described.float32"),
    "wrong rank": ("Buffer_Dimensions", fixed(num_dims=1), "data.described.int8"),
    "never deleted": ("Buffer_IsDeleted", fixed(is_deleted=False), "lifecycle.buffer_delete"),
    "a nameless platform": (
        "Client_PlatformName",
        fixed(platform_name_size=0),
        "devices.platform",
    ),
    "no bytes": ("Buffer_OnDeviceSizeInBytes", fixed(on_device_size_in_bytes=0), "layouts.strides"),
    "memories without devices": (
        "Memory_AddressableByDevices",
        fixed(num_devices=0),
        "devices.memory_devices",
    ),
    "a device nowhere": (
        "Device_IsAddressable",
        fixed(is_addressable=False),
        "devices.addressable",
    ),
    "no cost": (
        "Executable_GetCostAnalysis",
        fixed(num_properties=0, properties=None),
        "executables.cost",
    ),
    "no memory needed": (
        "Executable_GetCompiledMemoryStats",
        fixed(argument_size_in_bytes=0),
        "executables.memory_stats",
    ),
    "wrong result types": (
        "Executable_OutputElementTypes",
        fixed(num_output_types=2),
        "executables.outputs",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(plugin: Plugin, name: str) -> None:
    function, fault, check = FAULTS[name]
    status, reason = judge(CHECKS[check], context(plugin, function, fault))
    assert status is Status.FAIL, reason
    assert reason


@pytest.mark.parametrize("check", sorted({check for *_, check in FAULTS.values()}))
def test_the_same_checks_pass_without_a_fault(plugin: Plugin, check: str) -> None:
    made = context(plugin, "Event_IsReady", lambda original: original)
    assert judge(CHECKS[check], made) == (Status.PASS, "")
