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
    with pytest.raises(Unimplemented, match="program of 4194305 operations on elements"):
        pair.compile(source, options=CompileOptions(num_replicas=2))
    pair.compile(source)


def test_what_needs_a_partitioner_is_refused(pair: Client) -> None:
    gspmd = '{mhlo.sharding = "{devices=[2]<=[2]}"}'
    shardy = '{sdy.sharding = #sdy.sharding<@m, [{"x"}]>}'
    for mesh, attributes in (("", gspmd), ('sdy.mesh @m = <["x"=2]>', shardy)):
        main = "func.func @main(%a: tensor<4xf32> ATTRIBUTES) -> tensor<4xf32>"
        source = f"{mesh} {main.replace('ATTRIBUTES', attributes)} {{ return %a : tensor<4xf32> }}"
        with pytest.raises(Unimplemented, match="no partitioner"):
            pair.compile(source, options=CompileOptions(num_partitions=2))


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
