"""A small PJRT plugin in Python, for one device: the PJRT C API over what `chip` can do.

It stands in for the library until there is one. A function of the table gets its args struct of
pjrt_c_api.h, fills the outputs, and raises `Status` to return an error. All work is done when a
call returns. Functions that are not here return UNIMPLEMENTED; the package pjrt-bridge-reference
has all of them, and devices that work while their callers go on.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pjrt_bridge import dtypes
from pjrt_bridge.abi.implement import Implementation, read
from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.abi.python_plugins import Functions, fill, host_array, invalid, unimplemented
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import decode_named_values, pointers, read_int64s, read_pointers, text
from pjrt_bridge.errors import ErrorCode, UnsupportedDtype
from pjrt_bridge.stablehlo import Program, TensorType
from pjrt_bridge_mychip import chip
from pjrt_bridge_mychip.extension import Thermometer

FUNCTIONS = Functions()
"""The table, by names of pjrt_c_api.h without `PJRT_`."""

OBJECTS = FUNCTIONS.objects
"""What stands behind the pointers that callers were given."""

getter, destructor, implements = FUNCTIONS.getter, FUNCTIONS.destructor, FUNCTIONS.implements


# -- plugin and client -----------------------------------------------------------------------------


class Device:
    """A device with its memory space; also its description, and the topology of it alone."""

    def __init__(self, celsius: float = 0.0) -> None:
        self.celsius = celsius
        self.pointer = OBJECTS.add(self)
        self.memory = OBJECTS.add(Memory(self))


@dataclass(eq=False)
class Memory:
    """The memory space of a device."""

    device: Device


@dataclass(eq=False)
class Client:
    """A client with one device."""

    device: Device


def create_client(args: Any) -> None:
    """PJRT_Client_Create. An option that is not known is an error: users would wonder."""
    options = decode_named_values(args.create_options, args.num_options)
    celsius = options.pop("celsius", 40.0)
    if options or not isinstance(celsius, float):
        raise invalid(f"create_options: found {options or celsius}, expected celsius, a float")
    args.client = OBJECTS.add(Client(Device(celsius)))


def create_topology(args: Any) -> None:
    """PJRT_TopologyDescription_Create: the device, also where there is none."""
    name = text(args.topology_name, args.topology_name_size)
    if name != "1":
        raise invalid(f"found the topology {name!r}, expected '1'")
    args.topology = Device().pointer


FUNCTIONS["Plugin_Initialize"] = lambda args: None
# From the versions callers choose what StableHLO to write.
FUNCTIONS["Plugin_Attributes"] = lambda args: fill(args, attributes=chip.stablehlo_versions())
FUNCTIONS["Client_Create"] = create_client
FUNCTIONS["TopologyDescription_Create"] = create_topology

destructor("Client_Destroy", Client)
getter("Client_PlatformName", Client, platform_name=lambda _: "mychip")
getter("Client_PlatformVersion", Client, platform_version=lambda _: "mychip 0.1.0")
getter("Client_ProcessIndex", Client, process_index=lambda _: 0)
getter("Client_Devices", Client, devices=lambda it: (it.device.pointer,))
getter("Client_AddressableDevices", Client, addressable_devices=lambda it: (it.device.pointer,))
getter("Client_AddressableMemories", Client, addressable_memories=lambda it: (it.device.memory,))

destructor("TopologyDescription_Destroy", Device)
getter("Client_TopologyDescription", Client, topology=lambda it: it.device.pointer)
getter("TopologyDescription_PlatformName", Device, platform_name=lambda _: "mychip")
getter("TopologyDescription_PlatformVersion", Device, platform_version=lambda _: "mychip 0.1.0")
getter("TopologyDescription_GetDeviceDescriptions", Device, descriptions=lambda it: (it.pointer,))
getter("TopologyDescription_Attributes", Device, attributes=lambda _: {})

getter("Device_GetDescription", Device, device_description=lambda it: it.pointer)
getter("Device_IsAddressable", Device, is_addressable=lambda _: True)
getter("Device_LocalHardwareId", Device, local_hardware_id=lambda _: 0)
getter("Device_AddressableMemories", Device, memories=lambda it: (it.memory,))
getter("Device_DefaultMemory", Device, memory=lambda it: it.memory)
getter("DeviceDescription_Id", Device, id=lambda _: 0)
getter("DeviceDescription_ProcessIndex", Device, process_index=lambda _: 0)
getter("DeviceDescription_Kind", Device, device_kind=lambda _: "mychip")
getter("DeviceDescription_Attributes", Device, attributes=lambda _: {"coords": (0, 0, 0)})
getter("DeviceDescription_ToString", Device, to_string=lambda _: "mychip 0")

getter("Memory_Id", Memory, id=lambda _: 0)
getter("Memory_Kind", Memory, kind=lambda _: "device")
getter("Memory_ToString", Memory, to_string=lambda _: "memory of mychip 0")
getter("Memory_AddressableByDevices", Memory, devices=lambda it: (it.device.pointer,))

# -- events ----------------------------------------------------------------------------------------


class Event:
    """The end of work, which is over when a caller gets the event."""


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)

destructor("Event_Destroy", Event)
getter("Event_IsReady", Event, is_ready=lambda _: True)
getter("Event_Await", Event)
getter("Event_Error", Event)


@implements("Event_OnReady", Event)
def call_back(_: Event, args: Any) -> None:
    """Call the caller's function at once, with no error."""
    CALLBACK(args.callback)(None, args.user_arg)


# -- buffers ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class Buffer:
    """An array in the memory of a device, row-major."""

    device: Device
    type: TensorType
    array: NDArray[Any] | None

    def value(self) -> NDArray[Any]:
        """The array, if it is there still."""
        if self.array is None:
            raise invalid(f"buffer {self.type} was deleted")
        return self.array


destructor("Buffer_Destroy", Buffer)
getter("Buffer_ElementType", Buffer, type=lambda it: it.type.dtype.code)
getter("Buffer_Dimensions", Buffer, dims=lambda it: it.type.shape)
getter("Buffer_OnDeviceSizeInBytes", Buffer, on_device_size_in_bytes=lambda it: it.type.nbytes)
getter("Buffer_Device", Buffer, device=lambda it: it.device.pointer)
getter("Buffer_Memory", Buffer, memory=lambda it: it.device.memory)
getter("Buffer_IsDeleted", Buffer, is_deleted=lambda it: it.array is None)
getter("Buffer_IsOnCpu", Buffer, is_on_cpu=lambda _: False)
getter("Buffer_ReadyEvent", Buffer, event=lambda _: OBJECTS.add(Event()))


@implements("Buffer_Delete", Buffer)
def delete_buffer(buffer: Buffer, args: Any) -> None:
    """Give up the memory; the pointer stays one until it is destroyed."""
    buffer.array = None


@implements("Client_BufferFromHostBuffer", Client)
def put(client: Client, args: Any) -> None:
    """Copy an array of the host, which the caller may change when the call has returned."""
    if args.device_layout:
        raise unimplemented("device_layout: arrays are row-major here")
    shape = read_int64s(args.dims, args.num_dims)
    try:
        type = TensorType(shape, dtypes.from_code(args.type))
    except UnsupportedDtype as error:
        raise invalid(str(error)) from None
    strides = read_int64s(args.byte_strides, args.num_byte_strides) or None
    array = np.array(host_array(args.data, shape, type.dtype, strides), order="C")
    args.buffer = OBJECTS.add(Buffer(client.device, type, array))
    args.done_with_host_buffer = OBJECTS.add(Event())


@implements("Buffer_ToHostBuffer", Buffer)
def get(buffer: Buffer, args: Any) -> None:
    """Copy an array to the host; without a destination tell the bytes that it needs."""
    if args.host_layout:
        raise unimplemented("host_layout: arrays are row-major here")
    array, size = buffer.value(), buffer.type.nbytes
    if not args.dst:
        args.dst_size = size
        return
    if args.dst_size < size:
        raise invalid(f"dst_size is {args.dst_size}, expected {size} bytes")
    host_array(args.dst, array.shape, buffer.type.dtype)[...] = array
    args.event = OBJECTS.add(Event())


# -- programs --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Executable:
    """A program that the chip can run, on a device."""

    device: Device
    program: Program
    deleted: bool = False


destructor("Executable_Destroy", Executable)
getter("Executable_Name", Executable, executable_name=lambda it: it.program.name)
getter("Executable_NumReplicas", Executable, num_replicas=lambda _: 1)
getter("Executable_NumPartitions", Executable, num_partitions=lambda _: 1)
getter(
    "Executable_NumOutputs", Executable, num_outputs=lambda it: len(it.program.signature.results)
)

destructor("LoadedExecutable_Destroy", Executable)
getter("LoadedExecutable_GetExecutable", Executable, executable=OBJECTS.add)
getter("LoadedExecutable_IsDeleted", Executable, is_deleted=lambda it: it.deleted)


@implements("LoadedExecutable_Delete", Executable)
def delete_executable(executable: Executable, args: Any) -> None:
    """Run it no more; the pointer stays one until it is destroyed."""
    executable.deleted = True


def compiled(device: Device, args: Any) -> int:
    """A pointer to the executable of the program in the args of a compiling function."""
    given = read(STRUCTS["PJRT_Program"], args.program)
    if text(given.format, given.format_size) != "mlir":
        raise unimplemented(f"programs in the format {text(given.format, given.format_size)!r}")
    code = ctypes.string_at(given.code, given.code_size)
    options = ctypes.string_at(args.compile_options, args.compile_options_size)
    program = chip.compile_program(code, options)
    return OBJECTS.add(Executable(device, program))


@implements("Client_Compile", Client)
def compile_for_client(client: Client, args: Any) -> None:
    """Compile a program for the device of a client."""
    args.executable = compiled(client.device, args)


@implements("Compile", Device)
def compile_for_topology(device: Device, args: Any) -> None:
    """Compile a program for the device of a topology, which need not be there."""
    args.executable = compiled(device, args)


@implements("LoadedExecutable_Execute", Executable)
def execute(executable: Executable, args: Any) -> None:
    """Run a program."""
    if executable.deleted:
        raise Status(ErrorCode.FAILED_PRECONDITION, "the executable was deleted")
    if args.num_devices != 1:
        raise invalid(f"num_devices is {args.num_devices}, expected 1")
    device, signature = executable.device, executable.program.signature
    row = read_pointers(args.argument_lists, 1)[0] if args.num_args else None
    arguments = [OBJECTS.get(pointer, Buffer) for pointer in read_pointers(row, args.num_args)]
    # A chip that compared bytes only would compute with floats that are integers.
    found = [str(buffer.type) for buffer in arguments]
    expected = [str(parameter.type) for parameter in signature.parameters]
    if found != expected:
        raise invalid(f"found the arguments {found}, expected {expected}")
    values = chip.run(executable.program, *(buffer.value() for buffer in arguments))
    types = [result.type for result in signature.results]
    results = [
        OBJECTS.add(Buffer(device, type, value)) for type, value in zip(types, values, strict=True)
    ]
    if results:
        (row,) = read_pointers(args.output_lists, 1)
        ctypes.memmove(row, pointers(results), 8 * len(results))
    if args.device_complete_events:
        ctypes.c_void_p.from_address(args.device_complete_events).value = OBJECTS.add(Event())


# -- the table -------------------------------------------------------------------------------------


def read_thermometer(args: Any) -> None:
    """The function of the chip's own extension."""
    args.celsius = OBJECTS.get(args.device, Device).celsius


@cache
def table() -> Implementation:
    """The PJRT_Api, at its `address`; it lives as long as the process."""
    made = FUNCTIONS.table()
    made.add_extension(Thermometer.TABLE, {"read": read_thermometer})
    return made
