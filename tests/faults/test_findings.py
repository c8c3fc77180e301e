"""What the matrix of faults has found, each as a test of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from pjrt_bridge.errors import Internal, PjrtError, PluginIncompatible, ResourceExhausted, Unknown
from pjrt_bridge.runtime import Layout
from pjrt_bridge.runtime.core.buffer_core import BufferState
from pjrt_bridge.runtime.ownership import pending
from tests import programs
from tests.faults.faulty import Fault
from tests.faults.torch_operations import compiled_here
from tests.faults.world import World
from tests.runtime.arrays import aligned


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    assert found.table.ledger.misuse == []
    found.table.take_back()
    pending.lost.clear()
    found.close()
    assert found.settled() is None


def test_an_error_about_an_error(world: World) -> None:
    device = world.client.devices[0]
    with world.table.strike(Fault("Error_GetCode", "error")), pytest.raises(Unknown):
        device.memory_stats()
    assert world.table.ledger.alive()["Error"] == 0


@pytest.mark.parametrize(
    "fault", [Fault("LoadedExecutable_Execute", "consumed"), Fault("Buffer_IsDeleted", "error")]
)
def test_an_argument_that_may_be_gone_is_not_used_again(world: World, fault: Fault) -> None:
    executable = world.client.compile(programs.ALIASED_ADD)
    given = [world.client.put(world.array, copy=True) for _ in range(2)]
    with world.table.strike(fault):
        if fault.kind == "consumed":
            with pytest.raises(Internal):
                executable.execute(given)
        else:
            executable.execute(given)
    assert [buffer.state for buffer in given] == [BufferState.DONATED, BufferState.LIVE]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("Buffer_GetMemoryLayout", "error"), Internal),
        (Fault("Buffer_GetMemoryLayout", "nothing"), PluginIncompatible),
        (Fault("LoadedExecutable_Execute", "partial"), PluginIncompatible),
        (Fault("LoadedExecutable_Execute", "nothing"), PluginIncompatible),
    ],
)
def test_results_that_cannot_be_used_go_back(
    world: World, fault: Fault, error: type[Exception]
) -> None:
    two = world.client.compile(programs.TWO_RESULTS)
    before = world.alive()
    with world.table.strike(fault), pytest.raises(error, match="faulty"):
        two(np.ones(4, np.float32), np.ones(2, np.int32))
    assert world.settled(before) is None
    assert len(two(np.ones(4, np.float32), np.ones(2, np.int32))) == 3


@pytest.mark.parametrize(
    ("function", "use"),
    [
        ("Buffer_OpaqueDeviceMemoryDataPointer", np.asarray),
        ("Buffer_ReadyEvent", lambda buffer: buffer.block_until_ready()),
        ("Buffer_ToHostBuffer", lambda buffer: buffer.to_numpy()),
    ],
)
def test_outputs_that_are_null(world: World, function: str, use: Any) -> None:
    (result,) = world.add(world.array, world.array)
    with (
        world.table.strike(Fault(function, "nothing")),
        pytest.raises(PluginIncompatible, match="NULL"),
    ):
        use(result)
    assert result.to_numpy()[1] == 2


@pytest.mark.parametrize(
    "function",
    [
        "Executable_Serialize",
        "Executable_OutputElementTypes",
        "Executable_OutputDimensions",
        "Executable_NumOutputs",
        "LoadedExecutable_GetExecutable",
    ],
)
def test_programs_of_which_nothing_is_said(world: World, function: str) -> None:
    client = world.client
    client.safe_flags  # asked for once
    with world.table.strike(Fault(function, "nothing")), pytest.raises(PluginIncompatible):
        client.compile(programs.ADD).serialize()


def test_a_device_without_a_description(world: World) -> None:
    with (
        world.table.strike(Fault("Device_GetDescription", "nothing")),
        pytest.raises(PluginIncompatible, match="Device_GetDescription gave NULL"),
    ):
        world.client.close()


def test_a_passing_failure_does_not_cost_the_safe_flags(world: World) -> None:
    client = world.client
    with (
        world.table.strike(Fault("Client_Compile", "exhausted")),
        pytest.raises(ResourceExhausted),
    ):
        client.compile(programs.ADD)
    assert client.safe_flags


def test_memory_under_a_buffer_that_stays_is_kept(world: World) -> None:
    array = aligned(np.arange(64, dtype=np.float32))
    buffer = world.client.put(array, copy=False)
    before = world.table.ledger.alive()["Event"]
    with world.table.strike(Fault("Buffer_Destroy", "error")):
        buffer.delete()
    assert any(memory is array for memory in pending.lost)
    assert world.table.ledger.alive()["Event"] == before - 1


def test_the_layout_that_a_program_asks_for_where_the_plugin_tells_none() -> None:
    world = World(without=["Buffer_GetMemoryLayout"])
    columns = '{mhlo.layout_mode = "{0,1}"}'
    turn = world.client.compile(programs.identity("tensor<2x3xf32>", result=columns))
    base = np.arange(6, dtype=np.float32).reshape(2, 3)
    (result,) = turn(base)
    assert result.layout == Layout((0, 1))
    np.testing.assert_array_equal(result.to_numpy(), base)
    del turn, result
    world.close()
    assert world.settled() is None


@pytest.mark.parametrize("way", ["c", "python"])
@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_an_update_is_not_made_twice(world: World, way: str) -> None:
    torch.compiler.reset()

    def step(total: torch.Tensor) -> torch.Tensor:
        total.add_(1)
        return total.sum()

    run = compiled_here(world, way, step, {"fallback": "host"})
    run(torch.zeros(1 << 15))
    total = torch.zeros(1 << 15)
    with world.table.strike(Fault("LoadedExecutable_Execute", "consumed")):
        with pytest.raises(PjrtError) as caught:
            run(total)
        assert "tensors that it updates may hold old, new" in caught.value.__notes__[0]
    assert float(total.max()) <= 1
    torch.compiler.reset()


@pytest.mark.parametrize("way", ["c", "python"])
@pytest.mark.parametrize("kind", ["partial", "nothing", "consumed"])
@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_pytorch_takes_over_where_results_are_missing(world: World, way: str, kind: str) -> None:
    torch.compiler.reset()
    run = compiled_here(world, way, lambda x: (x + 1, x * 2), {"fallback": "host"})
    x = torch.arange(4.0)
    run(x)
    with world.table.strike(Fault("LoadedExecutable_Execute", kind)):
        assert [found.tolist() for found in run(x)] == [(x + 1).tolist(), (x * 2).tolist()]
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_pytorch_takes_over_where_results_cannot_be_fetched() -> None:
    torch.compiler.reset()
    world = World("copying")
    run = compiled_here(world, "python", lambda x: x + 1, {"fallback": "host"})
    x = torch.arange(4.0)
    run(x)
    with world.table.strike(Fault("Buffer_ToHostBuffer", "error")):
        assert run(x).tolist() == (x + 1).tolist()
    torch.compiler.reset()
    del run
    world.close()
    assert world.settled() is None
