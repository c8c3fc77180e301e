"""Programs on devices: values, donation, events and errors, several devices."""

import asyncio
import ctypes
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import wire
from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import free, int64s, pointers, read_int64s, read_pointers, text
from pjrt_bridge.errors import (
    BufferUnavailable,
    Cancelled,
    ErrorCode,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    PjrtError,
    Unimplemented,
)
from pjrt_bridge.runtime import BufferState, Client, CompileOptions, Plugin
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.interpret import interpretable
from pjrt_bridge_reference.options import Options, read_options
from pjrt_bridge_reference.slots import ERRORS
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


# -- time ------------------------------------------------------------------------------------------


@pytest.fixture
def slow(plugin: Plugin):  # type: ignore[no-untyped-def]
    """A client whose executions take a tenth of a second."""
    with Client(plugin, {"latency_ms": 100, "device_count": 2}) as client:
        yield client


def test_a_call_returns_before_the_results_are_there(slow: Client) -> None:
    add = slow.compile(programs.ADD)
    (result,), event = add.submit([slow.put(ONES), slow.put(ONES)])
    (more,) = add.execute([result, result])
    assert not event.ready
    assert not more.ready()
    event.wait()
    assert np.asarray(more).sum() == 256
    asyncio.run(awaited(add.submit([more, more])[1]))


async def awaited(event):  # type: ignore[no-untyped-def]
    await event


def test_devices_work_side_by_side(slow: Client) -> None:
    executables = [
        slow.compile(programs.ADD, options=CompileOptions(device_assignment=[[id]]))
        for id in (0, 1)
    ]
    arguments = [[slow.put(ONES, device)] * 2 for device in slow.devices]
    start = time.monotonic()
    results = [
        executable.execute(buffers)[0]
        for executable, buffers in zip(executables, arguments, strict=True)
        for _ in range(3)
    ]
    for result in results:
        result.block_until_ready()
    assert 0.3 <= time.monotonic() - start < 0.55


def test_everything_may_be_dropped_while_a_program_runs(slow: Client) -> None:
    add = slow.compile(programs.ADD)
    argument = slow.put(ONES)
    results = add.execute([argument, argument])
    add.close()
    argument.delete()
    (result,) = results
    assert np.asarray(result).sum() == 128


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def test_callbacks_of_events(slow: Client, plugin: Plugin) -> None:
    call = plugin.api.call
    told, came = [], threading.Event()

    def on_ready(error: int | None, argument: int | None) -> None:
        found = None if error is None else plugin.api.error(error, "Event_OnReady")
        told.append((type(found), argument, threading.current_thread().name))
        came.set()

    callback = CALLBACK(on_ready)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    (result,) = slow.compile(programs.ADD)(ONES, ONES)
    with result.held() as pointer:
        event = call("Buffer_ReadyEvent", buffer=pointer).event
    with pytest.raises(FailedPrecondition, match="not ready"):
        call("Event_Error", event=event)
    call("Event_OnReady", event=event, callback=address, user_arg=7)
    # The event may go before its callback comes.
    call("Event_Destroy", event=event)
    assert came.wait(5)
    assert told == [(type(None), 7, "reference device 0")]
    with result.held() as pointer:
        event = call("Buffer_ReadyEvent", buffer=pointer).event
    call("Event_OnReady", event=event, callback=address, user_arg=8)
    assert told[1][:2] == (type(None), 8), "of an event that is over it comes at once"
    call("Event_Error", event=event)
    call("Event_Destroy", event=event)
    result.delete()
    came.clear()
    event = failed(slow)
    with pytest.raises(InvalidArgument, match="callback is NULL"):
        call("Event_OnReady", event=event)
    call("Event_OnReady", event=event, callback=address, user_arg=9)
    assert came.wait(5)
    assert told[2][:2] == (Cancelled, 9)
    call("Event_Destroy", event=event)
    assert ERRORS.count() == 0


def failed(client: Client) -> int:
    """An event that ends with CANCELLED."""
    manager = client.api.call(
        "Client_CreateBuffersForAsyncHostToDevice",
        client=client.handle.pointer,
        shape_specs=STRUCTS["PJRT_ShapeSpec"].new(element_type=11),
        num_shape_specs=1,
        memory=client.memories[0].pointer,
    ).transfer_manager
    prefix = "AsyncHostToDeviceTransferManager_"
    call = client.api.call
    buffer = call(prefix + "RetrieveBuffer", transfer_manager=manager).buffer_out
    event = call("Buffer_ReadyEvent", buffer=buffer).event
    call("Buffer_Destroy", buffer=buffer)
    call(prefix + "Destroy", transfer_manager=manager)
    return int(event)


def test_errors_travel_with_the_values(slow: Client) -> None:
    call = slow.api.call
    manager = call(
        "Client_CreateBuffersForAsyncHostToDevice",
        client=slow.handle.pointer,
        shape_specs=STRUCTS["PJRT_ShapeSpec"].new(element_type=11),
        num_shape_specs=1,
        memory=slow.memories[0].pointer,
    ).transfer_manager
    prefix = "AsyncHostToDeviceTransferManager_"
    bad = call(prefix + "RetrieveBuffer", transfer_manager=manager).buffer_out
    add = slow.compile(programs.elementwise("tensor<f32>"))
    one = slow.put(np.float32(1))
    ((late,),) = execute(slow, add._loaded.pointer, [[one.handle.pointer, bad]], 1)
    ((later,),) = execute(slow, add._loaded.pointer, [[late, one.handle.pointer]], 1)
    event = call("Buffer_ReadyEvent", buffer=later).event
    assert not call("Event_IsReady", event=event).is_ready
    call(
        prefix + "SetBufferError",
        transfer_manager=manager,
        error_code=13,
        error_message=b"the wire broke",
        error_message_size=14,
    )
    for _ in range(2):
        with pytest.raises(Internal, match="argument 0: argument 1: the wire broke"):
            call("Event_Await", event=event)
    for buffer in (bad, late, later):
        call("Buffer_Destroy", buffer=buffer)
    call("Event_Destroy", event=event)
    call(prefix + "Destroy", transfer_manager=manager)


# -- several devices -------------------------------------------------------------------------------


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


# -- compilation -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "error", "why"),
    [
        ("stablehlo.cholesky %a : tensor<2x2xf32>", Unimplemented, "stablehlo.cholesky"),
        (
            "stablehlo.custom_call @f(%a) : (tensor<2x2xf32>) -> tensor<2x2xf32>",
            Unimplemented,
            "custom_call @f",
        ),
    ],
)
def test_unknown_operations_are_named(client: Client, body: str, error: type, why: str) -> None:
    with pytest.raises(error, match=why):
        client.compile(
            f"func.func @main(%a: tensor<2x2xf32>) -> tensor<2x2xf32> {{ %0 = {body}\n"
            "return %0 : tensor<2x2xf32> }"
        )


@pytest.mark.parametrize(
    ("code", "format", "options", "error", "why"),
    [
        (b"nonsense", b"mlir", CompileOptions().serialize(), InvalidArgument, "StableHLO text"),
        (b"ML\xefRgarbage", b"mlir", CompileOptions().serialize(), InvalidArgument, "bytecode"),
        (b"", b"mlir", CompileOptions().serialize(), InvalidArgument, "no public function"),
        (b"x", b"hlo", CompileOptions().serialize(), Unimplemented, "format 'hlo'"),
        (programs.ADD.encode(), b"mlir", b"", InvalidArgument, "0 replicas of 0 partitions"),
        (programs.ADD.encode(), b"mlir", b"\xff", InvalidArgument, "no CompileOptionsProto"),
        (
            programs.ADD.encode(),
            b"mlir",
            CompileOptions(env={"xla_fast": True}).serialize(),
            InvalidArgument,
            "flag 'xla_fast'",
        ),
        (
            programs.ADD.encode(),
            b"mlir",
            CompileOptions(num_replicas=3).serialize(),
            InvalidArgument,
            "the client has 1 devices",
        ),
        (
            programs.elementwise(
                "tensor<2xf32>", attributes="{tf.aliasing_output = 4 : i32}"
            ).encode(),
            b"mlir",
            CompileOptions().serialize(),
            InvalidArgument,
            "aliases result 4",
        ),
    ],
)
def test_programs_that_are_none(  # type: ignore[no-untyped-def]
    client: Client, code: bytes, format: bytes, options: bytes, error, why: str
) -> None:
    memory = ctypes.create_string_buffer(code), ctypes.create_string_buffer(format)
    program = STRUCTS["PJRT_Program"].new(
        code=ctypes.addressof(memory[0]),
        code_size=len(code),
        format=ctypes.addressof(memory[1]),
        format_size=len(format),
    )
    with pytest.raises(error, match=why):
        client.api.call(
            "Client_Compile",
            client=client.handle.pointer,
            program=program,
            compile_options=options,
            compile_options_size=len(options),
        )


def test_what_a_compiled_program_says(client: Client) -> None:
    matmul = client.compile("""
        func.func @main(%a: tensor<5x4x3xf32>, %b: tensor<5x3x2xf32>) -> tensor<5x4x2xf32> {
          %0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0],
            contracting_dims = [2] x [1]
            : (tensor<5x4x3xf32>, tensor<5x3x2xf32>) -> tensor<5x4x2xf32>
          return %0 : tensor<5x4x2xf32>
        }""")
    assert matmul.cost() == {"flops": 240, "bytes accessed": 4 * (60 + 30 + 40), "operations": 1}
    stats = client.compile(programs.ALIASED_ADD).memory_stats()
    assert (stats.arguments, stats.outputs, stats.aliased, stats.temporaries) == (512, 256, 256, 0)
    first, again, other = (
        client.compile(each).fingerprint()
        for each in (programs.ADD, programs.ADD, programs.DONOR_ADD)
    )
    assert first == again != other


def test_serialization(client: Client, pair: Client) -> None:
    for source in (programs.ADD, programs.ALIASED_ADD):
        written = client.compile(source).serialize()
        read = pair.deserialize(written)
        assert np.asarray(read(ONES, ONES)[0]).sum() == 128
    call, pointer = client.api.call, client.handle.pointer
    for blob, why in [(b"nothing", "starts with"), (b"PJRTREFX" + bytes(40), "truncated")]:
        with pytest.raises(InvalidArgument, match=why):
            call(
                "Executable_DeserializeAndLoad",
                client=pointer,
                serialized_executable=blob,
                serialized_executable_size=len(blob),
            )


def test_what_few_callers_ask(client: Client, pair: Client) -> None:
    call = client.api.call
    loaded = pair.compile(programs.ALIASED_ADD, options=CompileOptions(num_replicas=2))
    found = call("LoadedExecutable_GetDeviceAssignment", executable=loaded._loaded.pointer)
    proto = ctypes.string_at(found.serialized_bytes, found.serialized_bytes_size)
    free(found.serialized_device_assignment_deleter, found.serialized_device_assignment)
    column = b"\x08\x00\x08\x01"
    assert list(wire.fields(proto)) == [(1, 2), (2, 1), (3, column)]
    with loaded.held() as pointer:
        kinds = call("Executable_OutputMemoryKinds", executable=pointer, num_outputs=77)
        assert kinds.num_outputs == 1
        (kind,) = read_pointers(kinds.memory_kinds, 1)
        assert text(kind, read_int64s(kinds.memory_kind_sizes, 1)[0]) == "device"
        program = STRUCTS["PJRT_Program"].new()
        call("Executable_OptimizedProgram", executable=pointer, program=program)
        memory = ctypes.create_string_buffer(program.code_size)
        program.code = ctypes.addressof(memory)
        call("Executable_OptimizedProgram", executable=pointer, program=program)
        assert text(program.format, program.format_size) == "mlir"
        assert "tf.aliasing_output" in Program.parse(memory.raw).text
        program.code_size -= 1
        with pytest.raises(InvalidArgument, match="code_size"):
            call("Executable_OptimizedProgram", executable=pointer, program=program)


def test_shardings_of_a_single_device_mean_nothing(client: Client) -> None:
    source = """
    sdy.mesh @mesh = <["x"=2]>
    func.func @main(%a: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
        -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
      %0 = sdy.sharding_constraint %a <@mesh, [{"x"}]> : tensor<4xf32>
      %1 = stablehlo.add %0, %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>}
        : tensor<4xf32>
      return %1 : tensor<4xf32>
    }
    """
    executable = client.compile(source)
    assert np.asarray(executable(np.ones(4, np.float32))[0]).tolist() == [2] * 4


@given(st.binary(max_size=40), st.integers(0, 60))
@settings(max_examples=200)
def test_options_that_are_anything(noise: bytes, at: int) -> None:
    chosen = CompileOptions(num_replicas=2, num_partitions=2, device_assignment=[[0, 1], [2, 3]])
    good, codes = chosen.serialize(), set()
    assert read_options(good) == Options(2, 2, True, (0, 1, 2, 3), False)
    for data in (noise, good[:at] + noise, good[:at] + noise + good[at:]):
        try:
            found = read_options(data)
        except Status as status:
            codes.add(status.code)
        else:
            assert found.devices >= 1
    assert codes <= {ErrorCode.INVALID_ARGUMENT}


def test_a_deleted_executable_runs_no_more(client: Client) -> None:
    loaded = client.compile(programs.CONSTANT)
    pointer = loaded._loaded.pointer
    client.api.call("LoadedExecutable_Delete", executable=pointer)
    assert client.api.call("LoadedExecutable_IsDeleted", executable=pointer).is_deleted
    with pytest.raises(FailedPrecondition, match="executable 'constant' was deleted"):
        loaded()


def test_threads(client: Client) -> None:
    add = client.compile(programs.ALIASED_ADD)
    failures = []

    def work() -> None:
        try:
            one = client.put(ONES)
            value = client.put(ONES, copy=True)
            for _ in range(10):
                (value,) = add.execute([value, one])
            assert np.asarray(value)[0] == 11
        except (PjrtError, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
