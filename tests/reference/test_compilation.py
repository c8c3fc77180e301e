"""Compiled programs: what is refused, what they say of themselves, serialization."""

import ctypes
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import wire
from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import free, read_int64s, read_pointers, text
from pjrt_bridge.errors import (
    ErrorCode,
    FailedPrecondition,
    InvalidArgument,
    PjrtError,
    Unimplemented,
)
from pjrt_bridge.runtime import Client, CompileOptions
from pjrt_bridge.stablehlo import Program
from pjrt_bridge_reference.options import Options, read_options
from tests import programs
from tests.reference.test_execute import ONES


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
