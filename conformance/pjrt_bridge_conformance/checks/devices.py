"""Programs on several devices: chosen in the call, by assignment, as replicas and as partitions."""

from __future__ import annotations

import ctypes

import numpy as np

from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import free, read_pointers, text
from pjrt_bridge.errors import NotFound, PjrtError, Unimplemented
from pjrt_bridge.runtime import CompileOptions
from pjrt_bridge.stablehlo import Program
from pjrt_bridge_conformance import raw
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import ADD, distinct, equal, refused, require, same, works
from pjrt_bridge_conformance.outcomes import Unsupported

DEVICES = Group("devices")

_X = np.arange(64, dtype=np.float32)


@DEVICES.check
def one_by_one(context: Context) -> None:
    """A program compiled for each device runs there."""
    client = context.pair
    for device in client.devices:
        options = CompileOptions(device_assignment=[[device.id]])
        with client.compile(ADD, options=options) as executable:
            equal(executable.devices, (device,), "devices of the executable")
            (result,) = executable(_X, _X)
            same(result.to_numpy(), _X + _X, f"a sum on {device!r}")
            with result.held() as pointer:
                place = client.api.call("Buffer_Device", buffer=pointer).device
            equal(place, device.pointer, "device of the result")


@DEVICES.check
def portable(context: Context) -> None:
    """A portable executable runs on the device that a call names."""
    client = context.pair
    with client.compile(ADD, options=CompileOptions(portable=True)) as executable:
        for device in client.devices:
            x = client.put(_X, device)
            (result,) = executable.execute([x, x], device=device)
            same(result.to_numpy(), _X + _X, f"a sum on {device!r}")
            equal(result.device, device, "device of the result")


@DEVICES.check
def replicas(context: Context) -> None:
    """Replicas of a program run on devices of their own, each on its own arguments."""
    client = context.pair
    with client.compile(ADD, options=CompileOptions(num_replicas=2)) as executable:
        distinct(executable.devices, "devices of the replicas")
        arguments = [
            [client.put(_X + n, device), client.put(_X, device)]
            for n, device in enumerate(executable.devices)
        ]
        for number, (result,) in enumerate(executable.execute_sharded(arguments)):
            same(result.to_numpy(), _X + _X + number, f"replica {number}")


@DEVICES.check
def assignment(context: Context) -> None:
    """Replicas run on the devices that the caller assigns, also in another order."""
    client = context.pair
    ids = [[client.devices[1].id], [client.devices[0].id]]
    options = CompileOptions(num_replicas=2, device_assignment=ids)
    with client.compile(ADD, options=options) as executable:
        # The interface leaves the order of the devices open.
        found = sorted(device.id for device in executable.devices)
        equal(found, sorted(row[0] for row in ids), "devices of the executable")


@DEVICES.check
def default_assignment(context: Context) -> None:
    """The default assignment gives every replica a device of its own."""
    client = context.pair
    raw.need(client.api, "Client_DefaultDeviceAssignment")
    found = (ctypes.c_int * 2)(-1, -1)
    client.api.call(
        "Client_DefaultDeviceAssignment",
        client=client.handle.pointer,
        num_replicas=2,
        num_partitions=1,
        default_assignment_size=2,
        default_assignment=found,
    )
    distinct(list(found), "ids in the assignment")
    known = {device.id for device in client.devices}
    require(set(found) <= known, f"found the ids {list(found)}, there are {known}")


@DEVICES.check
def stated_assignment(context: Context) -> None:
    """An executable states its device assignment."""
    client = context.client
    api = client.api
    raw.need(api, "LoadedExecutable_GetDeviceAssignment")
    with raw.compiled(client, ADD) as (loaded, _):
        found = api.call("LoadedExecutable_GetDeviceAssignment", executable=loaded)
        require(found.serialized_bytes_size > 0, "the assignment is empty")
        free(found.serialized_device_assignment_deleter, found.serialized_device_assignment)


_SHARDED = """
module @sharded {{ {mesh}
  func.func @main(%a: tensor<8xf32> {{{one}}}, %b: tensor<8xf32> {{{all}}})
      -> (tensor<8xf32> {{{one}}}) {{
    %r = stablehlo.reverse %b, dims = [0] : tensor<8xf32>
    %0 = stablehlo.add %a, %r : tensor<8xf32>
    return %0 : tensor<8xf32> }} }}
"""
_GSPMD = _SHARDED.format(
    mesh="",
    one='mhlo.sharding = "{devices=[2]0,1}"',
    all='mhlo.sharding = "{replicated}"',
)
_SHARDY = _SHARDED.format(
    mesh='sdy.mesh @mesh = <["x"=2]>',
    one='sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>',
    all="sdy.sharding = #sdy.sharding<@mesh, [{}]>",
)


@DEVICES.each(["gspmd", "shardy"])
def partitions(context: Context, notation: str) -> None:
    """A program that is divided by its shardings computes what the whole does."""
    client = context.pair
    shardy = notation == "shardy"
    options = CompileOptions(num_partitions=2, use_shardy_partitioner=shardy)
    x = np.arange(8, dtype=np.float32)
    with client.compile(_SHARDY if shardy else _GSPMD, options=options) as executable:
        arguments = [
            [client.put(half, device), client.put(10 * x, device)]
            for half, device in zip(np.split(x, 2), executable.devices, strict=True)
        ]
        results = executable.execute_sharded(arguments)
        found = np.concatenate([result.to_numpy() for (result,) in results])
        same(found, x + 10 * x[::-1], "the joined result")


@DEVICES.check
def counts(context: Context) -> None:
    """An executable states its replicas and partitions."""
    client = context.pair
    for replicas, partitions in ((1, 1), (2, 1), (1, 2)):
        options = CompileOptions(num_replicas=replicas, num_partitions=partitions)
        with raw.compiled(client, ADD, options) as (_, inner):
            found = client.api.call("Executable_NumReplicas", executable=inner).num_replicas
            equal(found, replicas, "replicas")
            found = client.api.call("Executable_NumPartitions", executable=inner).num_partitions
            equal(found, partitions, "partitions")


@DEVICES.check
def too_many_replicas(context: Context) -> None:
    """More replicas than devices are a clean error."""
    client = context.client
    code = Program.parse(ADD).serialize_for(client.plugin.stablehlo_version)
    options = CompileOptions(num_replicas=4 * client.num_devices).serialize()
    refused(lambda: raw.compile_bytes(client, code, options), "four times as many replicas")
    works(client, "too many replicas")


def _topology(context: Context) -> int:
    client = context.client
    raw.need(client.api, "Client_TopologyDescription")
    found = client.api.call("Client_TopologyDescription", client=client.handle.pointer)
    return int(found.topology)


@DEVICES.check
def topology(context: Context) -> None:
    """The client's topology describes its platform and at least its devices."""
    client, pointer = context.client, _topology(context)
    api = client.api
    raw.need(api, "TopologyDescription_GetDeviceDescriptions", "TopologyDescription_PlatformName")
    name = api.call("TopologyDescription_PlatformName", topology=pointer)
    equal(text(name.platform_name, name.platform_name_size), client.platform_name, "platform")
    found = api.call("TopologyDescription_GetDeviceDescriptions", topology=pointer)
    descriptions = read_pointers(found.descriptions, found.num_descriptions)
    ids = {api.call("DeviceDescription_Id", device_description=d).id for d in descriptions}
    missing = {device.id for device in client.devices} - ids
    require(not missing, f"the topology lacks the devices {missing}")


@DEVICES.check
def topology_serialized(context: Context) -> None:
    """A topology can be written down and read again."""
    api, pointer = context.client.api, _topology(context)
    raw.need(api, "TopologyDescription_Serialize", "TopologyDescription_Deserialize")
    found = api.call("TopologyDescription_Serialize", topology=pointer)
    blob = ctypes.string_at(found.serialized_bytes, found.serialized_bytes_size)
    free(found.serialized_topology_deleter, found.serialized_topology)
    require(blob, "nothing was written")
    try:
        again = api.call(
            "TopologyDescription_Deserialize",
            serialized_topology=blob,
            serialized_topology_size=len(blob),
        ).topology
    except NotFound as error:
        raise Unsupported(f"refused in a clean way: {error}") from error
    try:
        name = api.call("TopologyDescription_PlatformName", topology=again)
        equal(
            text(name.platform_name, name.platform_name_size),
            context.client.platform_name,
            "platform of the topology that was read",
        )
    finally:
        api.call("TopologyDescription_Destroy", topology=again)


@DEVICES.check
def topology_bogus(context: Context) -> None:
    """A topology of a name that does not exist is a clean error, where names mean something.

    The header says nothing of names: a plugin may describe a topology by options alone.
    """
    api = context.client.api
    raw.need(api, "TopologyDescription_Create")
    name = b"no such topology 4711"
    try:
        made = api.call(
            "TopologyDescription_Create", topology_name=name, topology_name_size=len(name)
        )
    except Unimplemented:
        raise
    except PjrtError as error:
        require(error.message.strip(), f"refused with {error.code!r}, but without a text")
        return
    api.call("TopologyDescription_Destroy", topology=made.topology)
    raise Unsupported(f"the plugin does not look at a topology's name: it took {name.decode()!r}")


@DEVICES.check
def compiled_for_topology(context: Context) -> None:
    """A program can be compiled for a topology alone, without its devices."""
    client, pointer = context.client, _topology(context)
    api = client.api
    raw.need(api, "Compile")
    code = Program.parse(ADD).serialize_for(client.plugin.stablehlo_version)
    memory = ctypes.create_string_buffer(code, len(code))
    program = STRUCTS["PJRT_Program"].new(code=ctypes.addressof(memory), code_size=len(code))
    name = ctypes.create_string_buffer(b"mlir", 4)
    program.format, program.format_size = ctypes.addressof(name), 4
    options = CompileOptions().serialize()
    try:
        made = api.call(
            "Compile",
            topology=pointer,
            program=program,
            compile_options=options,
            compile_options_size=len(options),
        )
    except NotFound as error:
        raise Unsupported(f"refused in a clean way: {error}") from error
    try:
        found = api.call("Executable_NumOutputs", executable=made.executable)
        equal(found.num_outputs, 1, "results")
    finally:
        api.call("Executable_Destroy", executable=made.executable)
