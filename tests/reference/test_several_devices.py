"""Programs on several devices: replicas, collectives, the choice of a device."""

import numpy as np
import pytest

from pjrt_bridge.errors import (
    InvalidArgument,
    Unimplemented,
)
from pjrt_bridge.runtime import Client, CompileOptions
from pjrt_bridge.stablehlo.interpret import interpretable
from tests import programs
from tests.reference.test_execute import ONES, execute


def test_replicas(pair: Client) -> None:
    add = pair.compile(programs.ADD, options=CompileOptions(num_replicas=2))
    rows = [[pair.put(ONES * i, d), pair.put(ONES, d)] for i, d in enumerate(pair.devices)]
    found = add.execute_sharded(rows)
    assert [np.asarray(result)[0] for (result,) in found] == [1, 2]
    assert [result.device for (result,) in found] == list(pair.devices)


@pytest.mark.parametrize("options", [{"num_replicas": 2}, {"num_partitions": 2}])
def test_collectives(pair: Client, options: dict[str, int]) -> None:
    source = programs.ALL_REDUCE
    if "num_partitions" in options:
        handle = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
        source = source.replace(
            "{replica_groups", f"{{use_global_device_ids, {handle}, replica_groups"
        )
    chosen = CompileOptions(use_spmd_partitioning=False, **options)
    if interpretable.threads() < 2:
        with pytest.raises(Unimplemented, match="connects 2 processes"):
            pair.compile(source, options=chosen)
        return
    program = pair.compile(source, options=chosen)
    values = [np.full(4, 1, np.float32), np.full(4, 10, np.float32)]
    rows = [[pair.put(value, d)] for value, d in zip(values, pair.devices, strict=True)]
    found = program.execute_sharded(rows)
    assert [np.asarray(result).tolist() for (result,) in found] == [[11] * 4] * 2


def test_devices_must_not_wait_long_for_each_other(pair: Client) -> None:
    # The interpreter would end the process.
    source = """
    func.func @main(%a: tensor<128x128xf32>) -> (tensor<128x128xf32>, tensor<ui32>) {
      %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
        : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
      %1 = stablehlo.replica_id : tensor<ui32>
      return %0, %1 : tensor<128x128xf32>, tensor<ui32>
    }
    """
    with pytest.raises(Unimplemented, match="program of 4194304 operations on elements"):
        pair.compile(source, options=CompileOptions(num_replicas=2))
    pair.compile(source)


def test_other_shardings_than_those_of_shardy_are_refused(pair: Client) -> None:
    source = """
    func.func @main(%a: tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> tensor<4xf32> {
      return %a : tensor<4xf32>
    }
    """
    with pytest.raises(Unimplemented, match="by Shardy alone"):
        pair.compile(source, options=CompileOptions(num_partitions=2))


_PRODUCT = """
sdy.mesh @m = <["x"=2]>
func.func @main(
    %a: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@m, [{}, {"x"}]>},
    %b: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>})
    -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}) {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}
"""


def test_shardy_divides_programs(pair: Client) -> None:
    """Each device has half of the sum, and gets half of the rows of the whole."""
    chosen = CompileOptions(num_partitions=2, use_shardy_partitioner=True)
    if interpretable.threads() < 2:
        with pytest.raises(Unimplemented, match="connects 2 processes"):
            pair.compile(_PRODUCT, options=chosen)
        return
    program = pair.compile(_PRODUCT, options=chosen)
    assert program.memory_stats().arguments == 2 * 4 * (4 * 3)
    assert program.memory_stats().outputs == 4 * (2 * 4)
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    b = np.arange(24, dtype=np.float32).reshape(6, 4) - 7
    rows = [
        [pair.put(np.ascontiguousarray(a[:, part]), d), pair.put(b[part], d)]
        for part, d in zip((slice(3), slice(3, 6)), pair.devices, strict=True)
    ]
    (top,), (bottom,) = program.execute_sharded(rows)
    np.testing.assert_array_equal(np.concatenate([top, bottom]), a @ b)


def test_a_mesh_of_another_size_is_refused(pair: Client) -> None:
    source = _PRODUCT.replace('"x"=2', '"x"=4').replace("6x", "8x").replace("x6", "x8")
    with pytest.raises(InvalidArgument, match="has 4 devices, the program 2 partitions"):
        pair.compile(source, options=CompileOptions(num_partitions=2, use_shardy_partitioner=True))


def test_devices_are_chosen(pair: Client) -> None:
    second = CompileOptions(device_assignment=[[1]])
    assert pair.compile(programs.ADD, options=second).devices == pair.devices[1:]
    with pytest.raises(InvalidArgument, match=r"devices \[2\] are asked for"):
        pair.compile(programs.ADD, options=CompileOptions(device_assignment=[[2]]))
    portable = pair.compile(programs.ADD, options=CompileOptions(portable=True))
    for device in pair.devices:
        one = pair.put(ONES, device)
        (result,) = portable.execute([one, one], device=device)
        assert result.device is device
    with pytest.raises(InvalidArgument, match="execute_device is NULL"):
        execute(pair, portable._loaded.pointer, [[one.handle.pointer] * 2], 1)
