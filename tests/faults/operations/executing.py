"""Operations that compile and execute programs, with donation."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt_bridge.errors import BufferUnavailable
from pjrt_bridge.runtime import Buffer, CompileOptions
from tests import programs
from tests.faults.operations.registry import OPERATIONS, Act, numbers, operation
from tests.faults.world import World


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
