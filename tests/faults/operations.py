"""The public operations of the runtime, as functions of a world.

Each prepares what it needs and returns what is to be run under a fault: a function that can be
called any number of times and gives the same plain values each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt_bridge.abi.values import read_int64s
from pjrt_bridge.errors import BufferUnavailable, ProgramError, Unimplemented
from pjrt_bridge.runtime import Buffer, Client, CompileOptions, Executable, Layout, Plugin
from tests import programs
from tests.faults.world import World
from tests.runtime.arrays import misaligned

Act = Callable[[], Any]
Operation = Callable[[World], Act]

OPERATIONS: dict[str, tuple[str, Operation]] = {}
"""Name of an operation to the kind of its world, and the function."""


def operation(kind: str = "sharing") -> Callable[[Operation], Operation]:
    """Register an operation under its name, `__` for `/`."""

    def register(function: Operation) -> Operation:
        OPERATIONS[function.__name__.replace("__", "/")] = kind, function
        return function

    return register


def numbers(buffer: Buffer) -> list[Any]:
    """The values of a buffer, by a transfer."""
    return [str(buffer.dtype), buffer.to_numpy().tolist()]


# -- plugin, client, devices -----------------------------------------------------------------------


@operation()
def plugin__load(world: World) -> Act:
    def act() -> Any:
        plugin = Plugin.from_address(world.table.address, name="faulty", keepalive=world.table)
        return dict(plugin.attributes), plugin.stablehlo_version, plugin.extensions

    return act


def _described(client: Client) -> Any:
    devices = [
        (device.id, device.kind, device.process_index, device.local_hardware_id, device.description)
        for device in client.devices
    ]
    memories = [(memory.id, memory.kind, memory.description) for memory in client.memories]
    reached = [[memory.id for memory in device.memories] for device in client.devices]
    return (
        client.platform_name,
        client.platform_version,
        client.num_devices,
        devices,
        memories,
        reached,
    )


@operation()
def client__create(world: World) -> Act:
    plugin = world.plugin

    def act() -> Any:
        with Client(plugin, {"cpu_device_count": 2}) as client:
            return _described(client)

    return act


@operation("newer")
def client__create_newer(world: World) -> Act:
    plugin = world.plugin

    def act() -> Any:
        with Client(plugin, {"cpu_device_count": 1}) as client:
            return _described(client), dict(client.devices[0].attributes)

    return act


@operation()
def client__topology(world: World) -> Act:
    plugin = world.plugin

    def act() -> Any:
        with Client(plugin, {"cpu_device_count": 2}) as client:
            topology = client.topology
            devices = [(one.id, one.kind, one.description) for one in topology.devices]
            return topology.platform, devices, dict(topology.attributes), len(topology.serialize())

    return act


@operation()
def client__use_once(world: World) -> Act:
    """All that a program needs in its life, from the client on."""
    plugin, array = world.plugin, world.array

    def act() -> Any:
        with Client(plugin, {"cpu_device_count": 1}) as client:
            (result,) = client.compile(programs.ADD)(array, array)
            return numbers(result)

    return act


@operation()
def device__memory_stats(world: World) -> Act:
    device = world.client.devices[0]

    def act() -> Any:
        try:
            return device.memory_stats()
        except Exception as error:
            # The real plugin keeps none.
            if "injected fault" in str(error) or "misuse" in str(error):
                raise
            return type(error).__name__

    return act


# -- host memory to buffers ------------------------------------------------------------------------


def _put(name: str, make: Callable[[], Any], kind: str = "sharing", **options: Any) -> None:
    def prepare(world: World) -> Act:
        client, data = world.client, make()

        def act() -> Any:
            with client.put(data, **options) as buffer:
                return numbers(buffer)

        return act

    OPERATIONS[f"put/{name}"] = kind, prepare


def _base() -> np.ndarray[Any, Any]:
    return np.arange(12, dtype=np.int32).reshape(3, 4)


class _ArrayLike:
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return _base()


class _DLPack:
    def __dlpack__(self, **options: Any) -> Any:
        return _base().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


_put("copied", _base, copy=True)
_put("misaligned", lambda: misaligned(_base()))
_put("transposed", lambda: _base().T)
_put("number", lambda: 3.5)
_put("list", lambda: [[1, 2], [3, 4]])
_put("empty", lambda: np.zeros((0, 3), np.float32))
_put("buffer_protocol", lambda: memoryview(b"abcdef"))
_put("array_protocol", _ArrayLike)
_put("dlpack", _DLPack)
_put("copied_memory", _base, kind="copying")


@operation()
def put__shared(world: World) -> Act:
    client, array = world.client, world.array

    def act() -> Any:
        with client.put(array, copy=False) as buffer:
            return numbers(buffer), buffer.address == array.ctypes.data

    return act


@operation()
def put__memory_space(world: World) -> Act:
    client = world.client
    memory = client.memories[1]

    def act() -> Any:
        with client.put(_base(), memory=memory) as buffer:
            return numbers(buffer), buffer.memory is memory

    return act


@operation()
def put__buffer_of_another_device(world: World) -> Act:
    pair = world.pair
    first = pair.put(_base())

    def act() -> Any:
        with pair.put(first, pair.devices[1]) as buffer:
            return numbers(buffer), buffer.device.id

    return act


# -- reading ---------------------------------------------------------------------------------------


def _result(world: World) -> Buffer:
    (result,) = world.add(world.array, world.array)
    return result


@operation()
def read__to_numpy(world: World) -> Act:
    def act() -> Any:
        return numbers(_result(world))

    world.add
    return act


@operation()
def read__same_buffer(world: World) -> Act:
    buffer = world.client.put(_base(), copy=True)
    return lambda: numbers(buffer)


@operation()
def read__view(world: World) -> Act:
    buffer = world.client.put(_base(), copy=True)
    return lambda: np.asarray(buffer).tolist()


@operation("copying")
def read__copy(world: World) -> Act:
    buffer = world.client.put(_base(), copy=True)
    return lambda: np.asarray(buffer).tolist()


@operation()
def read__dlpack(world: World) -> Act:
    world.add
    return lambda: np.from_dlpack(_result(world)).tolist()


@operation()
def read__dlpack_copy(world: World) -> Act:
    buffer = world.client.put(_base(), copy=True)
    return lambda: np.from_dlpack(buffer, copy=True).tolist()


@operation()
def read__about(world: World) -> Act:
    client = world.client

    def act() -> Any:
        with client.put(_base(), copy=True) as buffer:
            memory = buffer.memory
            return (
                buffer.layout,
                buffer.nbytes,
                buffer.address != 0,
                memory and memory.kind,
                buffer.state,
            )

    return act


@operation()
def events__ready(world: World) -> Act:
    world.add

    def act() -> Any:
        buffer = _result(world)
        buffer.ready()
        with buffer.block_until_ready():
            event = buffer.ready_event()
            event.wait()
            ready = event.ready
            event.close()
            return ready

    return act


@operation()
def events__asyncio(world: World) -> Act:
    world.add

    async def wait() -> Any:
        return numbers(await _result(world))

    return lambda: asyncio.run(wait())


@operation()
def events__dropped(world: World) -> Act:
    """Results that nobody takes, over memory that is lent."""
    slow = world.client.compile(programs.MATMUL)
    data = np.ones((512, 512), np.float32)

    def act() -> Any:
        slow(data)
        world.rest()
        return None

    return act


# -- copies ----------------------------------------------------------------------------------------


@operation()
def copy__to_device(world: World) -> Act:
    pair = world.pair
    first = pair.put(_base())

    def act() -> Any:
        with first.copy_to(pair.devices[1]) as copy:
            return numbers(copy)

    return act


@operation()
def copy__to_memory(world: World) -> Act:
    client = world.client
    first = client.put(_base())

    def act() -> Any:
        with first.copy_to(client.memories[1]) as copy:
            return numbers(copy)

    return act


@operation()
def copy__by_columns(world: World) -> Act:
    """A layout that the plugin would not keep: through host memory."""
    columns = '{mhlo.layout_mode = "{0,1}"}'
    client = world.client
    turn = client.compile(programs.identity("tensor<3x4xi32>", result=columns))

    def act() -> Any:
        (result,) = turn(_base())
        copy = result.copy_to(client.devices[0])
        return result.layout == Layout((0, 1)), numbers(result), numbers(copy), copy.layout

    return act


@operation()
def copy__bounded(world: World) -> Act:
    cut = world.client.compile(
        programs.bounded("tensor<8xf32>", "tensor<?xf32, #stablehlo.bounds<8>>", 0)
    )

    def act() -> Any:
        (result,) = cut(np.arange(8, dtype=np.float32), np.int32(3))
        copy = result.copy_to(world.client.devices[0])
        return result.true_shape(), numbers(result), numbers(copy)

    return act


# -- programs --------------------------------------------------------------------------------------


@operation()
def compile__text(world: World) -> Act:
    client = world.client

    def act() -> Any:
        with client.compile(programs.TWO_RESULTS) as executable:
            return executable.outputs, [device.id for device in executable.devices]

    return act


@operation()
def compile__refused(world: World) -> Act:
    """An error of the plugin itself, on its whole way."""
    client = world.client
    unknown = programs.elementwise("tensor<2xf32>").replace(
        "stablehlo.add %a, %b : tensor<2xf32>",
        "stablehlo.custom_call @nobody(%a) : (tensor<2xf32>) -> tensor<2xf32>",
    )

    def act() -> Any:
        try:
            client.compile(unknown)
        except Exception as error:
            if "nobody" not in str(error):
                raise
            return type(error).__name__
        raise AssertionError("compiled")

    return act


@operation()
def execute__call(world: World) -> Act:
    add, array = world.add, world.array

    def act() -> Any:
        return numbers(add(array, array)[0])

    return act


@operation()
def execute__first(world: World) -> Act:
    """The first execution asks for what all results have in common."""
    client = world.client

    def act() -> Any:
        with client.compile(programs.TWO_RESULTS) as two:
            results = two(np.ones(4, np.float32), np.ones(2, np.int32))
            return [numbers(result) for result in results]

    return act


@operation("copying")
def execute__copied(world: World) -> Act:
    add, array = world.add, world.array

    def act() -> Any:
        return numbers(add(array, array)[0])

    return act


@operation()
def execute__submit(world: World) -> Act:
    add, client, array = world.add, world.client, world.array

    def act() -> Any:
        with client.put(array) as buffer:
            (result,), done = add.submit([buffer, buffer])
            try:
                done.wait()
                return numbers(result)
            finally:
                done.close()

    return act


@operation()
def execute__no_results(world: World) -> Act:
    sink, array = world.client.compile(programs.SINK), world.array
    return lambda: sink(array)


@operation()
def execute__several_devices(world: World) -> Act:
    pair = world.pair
    reduce = pair.compile(programs.ALL_REDUCE, options=CompileOptions(num_replicas=2))
    data = np.arange(4, dtype=np.float32)

    def act() -> Any:
        inputs = [[pair.put(data + at, device)] for at, device in enumerate(reduce.devices)]
        return [numbers(result) for (result,) in reduce.execute_sharded(inputs)]

    return act


@operation()
def execute__portable(world: World) -> Act:
    pair = world.pair
    add = pair.compile(programs.ADD, options=CompileOptions(portable=True))
    array = world.array

    def act() -> Any:
        second = pair.devices[1]
        buffer = pair.put(array, second)
        (result,) = add.execute([buffer, buffer], device=second)
        return numbers(result), result.device.id

    return act


def _donating(name: str, program: str, *, keep: bool = False) -> None:
    def prepare(world: World) -> Act:
        client, array = world.client, world.array
        executable = client.compile(program)

        def act() -> Any:
            given = [client.put(array, copy=True) for _ in range(2)]
            outcome = None
            try:
                (result,) = executable.execute(given, donate=() if keep else None)
                outcome = numbers(result)
            finally:
                # Whatever became of it, an argument can be read, or says that it cannot.
                for buffer in given:
                    _readable(buffer, array)
            return outcome, [buffer.state.value for buffer in given]

        return act

    OPERATIONS[f"donate/{name}"] = "sharing", prepare


def _readable(buffer: Buffer, array: np.ndarray[Any, Any]) -> None:
    try:
        with buffer.held() as pointer:
            api = buffer.client.api
            gone = api.has("Buffer_IsDeleted") and _deleted(api, pointer)
    except BufferUnavailable:
        return
    if gone:
        raise AssertionError("a buffer that was donated says that it is there")


def _deleted(api: Any, pointer: int) -> bool:
    try:
        return bool(api.call("Buffer_IsDeleted", buffer=pointer).is_deleted)
    except Exception:
        return False


_donating("aliased", programs.ALIASED_ADD)
_donating("donor", programs.DONOR_ADD)
_donating("kept", programs.ALIASED_ADD, keep=True)


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
        client = Client(plugin, {"cpu_device_count": 1})
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
        with client.put(_base(), copy=True) as buffer, buffer.held() as pointer:
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
