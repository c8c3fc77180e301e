"""Operations that put, read and copy buffers, and wait for their events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt_bridge.runtime import Buffer, Layout
from tests import programs
from tests.faults.operations.registry import OPERATIONS, Act, base, numbers, operation
from tests.faults.world import World
from tests.runtime.arrays import misaligned


def _put(name: str, make: Callable[[], Any], kind: str = "sharing", **options: Any) -> None:
    def prepare(world: World) -> Act:
        client, data = world.client, make()

        def act() -> Any:
            with client.put(data, **options) as buffer:
                return numbers(buffer)

        return act

    OPERATIONS[f"put/{name}"] = kind, prepare


class _ArrayLike:
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return base()


class _DLPack:
    def __dlpack__(self, **options: Any) -> Any:
        return base().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


_put("copied", base, copy=True)
_put("misaligned", lambda: misaligned(base()))
_put("transposed", lambda: base().T)
_put("number", lambda: 3.5)
_put("list", lambda: [[1, 2], [3, 4]])
_put("empty", lambda: np.zeros((0, 3), np.float32))
_put("buffer_protocol", lambda: memoryview(b"abcdef"))
_put("array_protocol", _ArrayLike)
_put("dlpack", _DLPack)
_put("copied_memory", base, kind="copying")


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
        with client.put(base(), memory=memory) as buffer:
            return numbers(buffer), buffer.memory is memory

    return act


@operation()
def put__buffer_of_another_device(world: World) -> Act:
    pair = world.pair
    first = pair.put(base())

    def act() -> Any:
        with pair.put(first, pair.devices[1]) as buffer:
            return numbers(buffer), buffer.device.id

    return act


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
    buffer = world.client.put(base(), copy=True)
    return lambda: numbers(buffer)


@operation()
def read__view(world: World) -> Act:
    buffer = world.client.put(base(), copy=True)
    return lambda: np.asarray(buffer).tolist()


@operation("copying")
def read__copy(world: World) -> Act:
    buffer = world.client.put(base(), copy=True)
    return lambda: np.asarray(buffer).tolist()


@operation()
def read__dlpack(world: World) -> Act:
    world.add
    return lambda: np.from_dlpack(_result(world)).tolist()


@operation()
def read__dlpack_copy(world: World) -> Act:
    buffer = world.client.put(base(), copy=True)
    return lambda: np.from_dlpack(buffer, copy=True).tolist()


@operation()
def read__about(world: World) -> Act:
    client = world.client

    def act() -> Any:
        with client.put(base(), copy=True) as buffer:
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


@operation()
def copy__to_device(world: World) -> Act:
    pair = world.pair
    first = pair.put(base())

    def act() -> Any:
        with first.copy_to(pair.devices[1]) as copy:
            return numbers(copy)

    return act


@operation()
def copy__to_memory(world: World) -> Act:
    client = world.client
    first = client.put(base())

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
        (result,) = turn(base())
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
