"""Operations that ask executables, serialize and load them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt_bridge.abi.values import read_int64s
from pjrt_bridge.errors import ProgramError, Unimplemented
from pjrt_bridge.runtime import Client, Executable
from tests import programs
from tests.faults.operations.registry import Act, base, numbers, operation
from tests.faults.world import World


@operation()
def executable__about(world: World) -> Act:
    add = world.add

    def flops() -> object:
        return add.cost().get("flops")

    try:
        flops()
    except Unimplemented:
        # Plugins from API 0.115 on estimate nothing.
        return lambda: (None, add.memory_stats(), len(add.fingerprint()) > 0)
    return lambda: (flops(), add.memory_stats(), len(add.fingerprint()) > 0)


@operation("newer")
def executable__memory_kinds(world: World) -> Act:
    add = world.add
    return lambda: add.parameter_memory_kinds()


@operation()
def executable__serialize(world: World) -> Act:
    add = world.add
    return lambda: len(add.serialize()) > 500


@operation()
def executable__deserialize(world: World) -> Act:
    client, blob, array = world.client, world.add.serialize(), world.array

    def act() -> Any:
        with client.deserialize(blob) as executable:
            return numbers(executable(array, array)[0])

    return act


@operation()
def executable__close_first(world: World) -> Act:
    """Everything dropped in the order that needs most care."""
    plugin, array = world.plugin, world.array

    def act() -> Any:
        client = Client(plugin, world.options(1))
        try:
            executable: Executable = client.compile(programs.ADD)
            (result,) = executable(array, array)
            view = np.asarray(result)
            executable.close()
        finally:
            client.close()
        return view.tolist()

    return act


@operation()
def gate__questions(world: World) -> Act:
    """Functions that nothing here needs, called as anybody may call them."""
    client, add = world.client, world.add
    device = client.devices[0]
    api, inner = client.api, add._inner.pointer

    def act() -> Any:
        with client.put(base(), copy=True) as buffer, buffer.held() as pointer:
            dims = api.call("Buffer_Dimensions", buffer=pointer)
            return (
                api.call("Executable_NumReplicas", executable=inner).num_replicas,
                api.call("Executable_SizeOfGeneratedCodeInBytes", executable=inner).size_in_bytes,
                api.call("Executable_Name", executable=inner).executable_name_size,
                api.call("Buffer_ElementType", buffer=pointer).type,
                api.call("Buffer_Device", buffer=pointer).device == device.pointer,
                read_int64s(dims.dims, dims.num_dims),
                api.call("Client_LookupDevice", client=client.handle.pointer, id=0).device
                == device.pointer,
                api.call("Device_IsAddressable", device=device.pointer).is_addressable,
            )

    return act


@operation()
def executable__foreign(world: World) -> Act:
    """What the bridge refuses by itself stays so under any fault."""
    client = world.client

    def act() -> Any:
        try:
            client.deserialize(b"no executable")
        except ProgramError as error:
            return str(error)
        raise AssertionError("loaded")

    return act
