"""Executions on one device: values, donation, calls that are refused."""

import ctypes
import sys
import threading

import numpy as np
import pytest

from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import int64s, pointers
from pjrt_bridge.errors import (
    BufferUnavailable,
    InvalidArgument,
    PjrtError,
    Unimplemented,
)
from pjrt_bridge.runtime import BufferState, Client, CompileOptions
from tests import programs

ONES = np.ones(64, np.float32)


def test_values(client: Client) -> None:
    a, b = np.ones(4, np.float32), np.array([5, 6], np.int32)
    found = client.compile(programs.TWO_RESULTS)(a, b)
    assert [np.asarray(each).tolist() for each in found] == [[-1] * 4, 7, [5, 6]]
    assert client.compile(programs.NOTHING)() == ()
    assert np.asarray(client.compile(programs.CONSTANT)()[0]).tolist() == [3, 4]
    client.compile(programs.SINK)(ONES)


@pytest.mark.parametrize("where", ["client", "host_client"])
@pytest.mark.parametrize("source", [programs.ALIASED_ADD, programs.DONOR_ADD])
def test_donation_in_place(where: str, source: str, request: pytest.FixtureRequest) -> None:
    client: Client = request.getfixturevalue(where)
    add = client.compile(source)
    given, one = client.put(ONES, copy=True), client.put(ONES)
    address = given.address
    (result,) = add.execute([given, one])
    assert given.state is BufferState.DONATED
    assert result.address == address
    assert np.asarray(result).sum() == 128
    with pytest.raises(BufferUnavailable, match="donated to executable 'add'"):
        np.asarray(given)
    (kept,) = add.execute([result, one], donate=())
    assert result.state is BufferState.LIVE
    assert np.asarray(kept).sum() == 192


def test_memory_that_is_lent_is_not_written(host_client: Client) -> None:
    raw = np.zeros(4 * 64 + 64, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64
    mine = raw[start : start + 256].view(np.float32)
    lent, one = host_client.put(mine), host_client.put(ONES)
    assert lent.address == mine.__array_interface__["data"][0]
    (result,) = host_client.compile(programs.ALIASED_ADD).execute([lent, one])
    assert lent.state is BufferState.DONATED
    assert np.asarray(result).tolist() == [1] * 64
    assert not mine.any()


def test_memory_that_is_viewed_is_not_donated(host_client: Client) -> None:
    given, one = host_client.put(ONES, copy=True), host_client.put(ONES)
    view = np.asarray(given)
    (result,) = host_client.compile(programs.ALIASED_ADD).execute([given, one])
    assert given.state is BufferState.LIVE
    assert np.asarray(result).sum() == 128
    assert view.sum() == 64


WHO = """
func.func @main(%a: tensor<64xf32>) -> (tensor<ui32>, tensor<64xf32>) {
  %0 = stablehlo.replica_id : tensor<ui32>
  return %0, %a : tensor<ui32>, tensor<64xf32>
}
"""
"""Its replicas run together, on the first device."""


def test_readers_come_before_the_donation(slow: Client) -> None:
    first, second = slow.devices
    who = slow.compile(WHO, options=CompileOptions(num_replicas=2))
    add = slow.compile(programs.ADD)
    double = slow.compile(programs.ALIASED_ADD, options=CompileOptions(device_assignment=[[1]]))
    given, one = slow.put(ONES, second), slow.put(ONES, second)
    other = slow.put(ONES, first)
    # The first device is busy, and reads the second one's buffer later than that writes to it.
    add.execute([other, other])
    (_, (_, seen)) = who.execute_sharded([[other], [given]])
    address = given.address
    (result,) = double.execute([given, one])
    assert given.state is BufferState.DONATED
    assert np.asarray(seen).sum() == 64
    assert np.asarray(result).sum() == 128
    assert result.address == address


def test_one_of_many_threads_gets_a_donated_argument(client: Client) -> None:
    add = client.compile(programs.ALIASED_ADD)
    one, given, found = client.put(ONES), [client.put(ONES) for _ in range(60)], []
    barrier = threading.Barrier(4)

    def race() -> None:
        for buffer in given:
            barrier.wait(5)
            row = [buffer.handle.pointer, one.handle.pointer]
            try:
                ((result,),) = execute(client, add._loaded.pointer, [row], 1)
            except PjrtError as error:
                found.append(type(error))
            else:
                client.api.call("Buffer_Destroy", buffer=result)
                found.append(None)

    threads = [threading.Thread(target=race) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert found.count(None) == 60
    assert found.count(InvalidArgument) == 180


def test_an_argument_that_is_donated_is_passed_once(client: Client) -> None:
    loaded = client.compile(programs.ALIASED_ADD)
    given = client.put(ONES)
    with pytest.raises(InvalidArgument, match="argument 0 is donated, and passed a second time"):
        execute(client, loaded._loaded.pointer, [[given.handle.pointer] * 2], 1)
    assert given.state is BufferState.LIVE
    assert np.asarray(given).sum() == 64


def execute(client, loaded, rows, outputs, **values):  # type: ignore[no-untyped-def]
    """PJRT_LoadedExecutable_Execute; the pointers of the results."""
    columns = [pointers(row) for row in rows]
    results = [pointers([None] * max(outputs, 1)) for _ in rows]
    given = pointers([ctypes.addressof(column) for column in columns])
    taken = pointers([ctypes.addressof(result) for result in results])
    values = {
        "executable": loaded,
        "options": STRUCTS["PJRT_ExecuteOptions"].new(),
        "argument_lists": given,
        "num_devices": len(rows),
        "num_args": len(rows[0]) if rows else 0,
        "output_lists": taken,
    } | values
    client.api.call("LoadedExecutable_Execute", **values)
    return [list(result) for result in results]


def test_bad_calls_are_errors_and_change_nothing(client: Client, pair: Client) -> None:
    loaded = client.compile(programs.ALIASED_ADD)
    pointer = loaded._loaded.pointer
    buffers = {
        "good": client.put(ONES),
        "int": client.put(ONES.astype(np.int32)),
        "shape": client.put(ONES.reshape(8, 8)),
        "device": pair.put(ONES, pair.devices[1]),
    }
    good = buffers["good"].handle.pointer

    def call(*row: int | None, **values):  # type: ignore[no-untyped-def]
        execute(client, pointer, [row or [good, good]], 1, **values)

    for name, why in [
        ("int", r"argument 1 of 'add' is i32\[64\], expected f32\[64\]"),
        ("shape", r"argument 1 of 'add' is f32\[8,8\]"),
        ("device", "argument 1 of 'add' is on device 1, expected 0"),
    ]:
        with pytest.raises(InvalidArgument, match=why):
            call(good, buffers[name].handle.pointer)
    for values, why in [
        ({"options": None}, "PJRT_ExecuteOptions: found NULL"),
        ({"argument_lists": None}, "argument_lists is NULL"),
        ({"argument_lists": pointers([None])}, "argument_lists is NULL"),
        ({"output_lists": None}, "output_lists is NULL"),
        ({"output_lists": pointers([None])}, "output_lists is NULL"),
        ({"num_devices": 2}, "num_devices is 2, 'add' runs on 1"),
        ({"num_args": 3}, "num_args is 3, the program has 2"),
        ({"executable": None}, "expected a LoadedExecutable, found NULL"),
        ({"executable": good}, "expected a LoadedExecutable, found a Buffer"),
    ]:
        with pytest.raises(InvalidArgument, match=why):
            call(**values)
    with pytest.raises(InvalidArgument, match="expected a Buffer, found NULL"):
        call(good, None)
    options = STRUCTS["PJRT_ExecuteOptions"].new(num_non_donatable_input_indices=1)
    indices = int64s([5])
    options.non_donatable_input_indices = ctypes.addressof(indices)
    with pytest.raises(InvalidArgument, match="there are 2 parameters"):
        call(options=options)
    with pytest.raises(Unimplemented, match="send and receive"):
        call(options=STRUCTS["PJRT_ExecuteOptions"].new(num_send_ops=1))
    with pytest.raises(Unimplemented, match="devices of its own"):
        call(execute_device=client.devices[0].pointer)
    assert buffers["good"].state is BufferState.LIVE
    assert np.asarray(loaded.execute([buffers["good"], client.put(ONES)])[0]).sum() == 128


def test_layouts_are_compared(client: Client) -> None:
    source = programs.identity("tensor<2x3xf32>", result='{mhlo.layout_mode = "{0,1}"}')
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    (made,) = client.compile(source)(array)
    assert made.layout.minor_to_major == (0, 1)
    assert np.array_equal(made, array)
    taking = programs.identity("tensor<2x3xf32>", attributes='{mhlo.layout_mode = "{0,1}"}')
    (back,) = client.compile(taking).execute([made])
    assert np.array_equal(back, array)
    plain = client.compile(programs.identity("tensor<2x3xf32>"))
    with pytest.raises(InvalidArgument, match=r"has the layout \(0, 1\), expected \(1, 0\)"):
        execute(client, plain._loaded.pointer, [[made.handle.pointer]], 1)
