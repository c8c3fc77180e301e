"""Memory spaces of a GPU: its own, and pinned memory of the host."""

from __future__ import annotations

import numpy as np
import pytest

from pjrt_bridge.runtime import Client, Memory
from tests import programs
from tests.conftest import Census

VECTOR = "tensor<1024xf32>"
X = np.arange(1024, dtype=np.float32)


def kind_attribute(kind: str) -> str:
    return f'{{mhlo.memory_kind = "{kind}"}}'


def placed(result: str, value: str, kind: str) -> str:
    """A line that moves a value to another memory space, as JAX writes it."""
    return (
        f"{result} = stablehlo.custom_call @annotate_device_placement({value}) "
        f'{{has_side_effect = true, mhlo.frontend_attributes = {{_xla_buffer_placement = "{kind}"}}'
        f"}} : ({VECTOR}) -> {VECTOR}"
    )


RESULT_ON_HOST = f"""
func.func @main(%a: {VECTOR}) -> ({VECTOR} {kind_attribute("pinned_host")}) {{
  %0 = stablehlo.add %a, %a : {VECTOR}
  {placed("%1", "%0", "pinned_host")}
  return %1 : {VECTOR}
}}
"""

PARAMETER_ON_HOST = f"""
func.func @main(%a: {VECTOR} {kind_attribute("pinned_host")}, %b: {VECTOR}) -> {VECTOR} {{
  {placed("%0", "%a", "device")}
  %1 = stablehlo.multiply %0, %b : {VECTOR}
  return %1 : {VECTOR}
}}
"""


@pytest.fixture
def pinned(gpu: Client) -> Memory:
    return next(one for one in gpu.devices[0].memories if one.kind == "pinned_host")


def test_kinds(gpu: Client) -> None:
    device = gpu.devices[0]
    assert {one.kind for one in device.memories} == {"device", "pinned_host"}
    assert device.default_memory is not None
    assert device.default_memory.kind == "device"


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64"])
def test_there_and_back(gpu: Client, pinned: Memory, dtype: str, no_leaks: Census) -> None:
    values = X.astype(dtype)
    with gpu.put(values, memory=pinned) as host, host.copy_to(gpu.devices[0]) as device:
        assert host.memory == pinned
        assert device.memory == gpu.devices[0].default_memory
        with device.copy_to(pinned) as back:
            assert back.memory == pinned
            for one in (host, device, back):
                assert np.array_equal(one.to_numpy(), values)


def test_a_result_in_the_memory_of_the_host(gpu: Client, pinned: Memory) -> None:
    with gpu.compile(RESULT_ON_HOST) as executable:
        (result,) = executable(X)
        assert result.memory == pinned
        assert np.array_equal(result.to_numpy(), X + X)
        with result.copy_to(gpu.devices[0]) as again:
            assert np.array_equal(executable(again)[0].to_numpy(), 4 * X)


def test_a_parameter_that_is_kept_on_the_host(gpu: Client, pinned: Memory) -> None:
    with (
        gpu.compile(PARAMETER_ON_HOST) as executable,
        gpu.put(X, memory=pinned) as weights,
        gpu.put(X) as argument,
    ):
        assert executable.parameter_memory_kinds() == ("pinned_host", "device")
        for _ in range(3):
            (result,) = executable.execute([weights, argument])
            assert result.memory == gpu.devices[0].default_memory
            assert np.array_equal(result.to_numpy(), X * X)


def test_the_statistics_follow_what_is_put(gpu: Client) -> None:
    device, size = gpu.devices[0], 64 << 20
    before = device.memory_stats()["bytes_in_use"]
    with gpu.put(np.zeros(size, np.int8)) as buffer:
        buffer.block_until_ready()
        assert device.memory_stats()["bytes_in_use"] >= before + size
    with gpu.compile(programs.NOTHING) as executable:
        executable.execute([])
    assert device.memory_stats()["bytes_in_use"] < before + size
