"""What the plugin says about a compiled program agrees with the program."""

from __future__ import annotations

import ctypes

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import read_int64s, read_pointers, text
from pjrt_bridge.dtypes import DType
from pjrt_bridge_conformance import raw
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import ADD, equal, require, same
from pjrt_bridge_conformance.numerics import build, run

EXECUTABLES = Group("executables")

_THREE = """
module @three { func.func @main(%a: tensor<2x3xf32>, %i: tensor<i32>)
    -> (tensor<3x2xf32>, tensor<i1>, tensor<0x4xi32>) {
  %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
  %1 = stablehlo.compare EQ, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %2 = stablehlo.constant dense<0> : tensor<0x4xi32>
  return %0, %1, %2 : tensor<3x2xf32>, tensor<i1>, tensor<0x4xi32> } }
"""


@EXECUTABLES.check
def name(context: Context) -> None:
    """An executable has a name."""
    api = context.client.api
    raw.need(api, "Executable_Name")
    with raw.compiled(context.client, _THREE) as (_, inner):
        found = api.call("Executable_Name", executable=inner)
        require(text(found.executable_name, found.executable_name_size), "the name is empty")


@EXECUTABLES.check
def outputs(context: Context) -> None:
    """Number, element types and dimensions of the results are the program's."""
    api = context.client.api
    raw.need(api, "Executable_OutputElementTypes", "Executable_OutputDimensions")
    with raw.compiled(context.client, _THREE) as (_, inner):
        equal(api.call("Executable_NumOutputs", executable=inner).num_outputs, 3, "results")
        kinds = api.call("Executable_OutputElementTypes", executable=inner)
        equal(kinds.num_output_types, 3, "element types")
        codes = list((ctypes.c_int * 3).from_address(kinds.output_types))
        expected = [dtypes.of(name).code for name in ("float32", "bool", "int32")]
        equal(codes, expected, "element types")
        dims = api.call("Executable_OutputDimensions", executable=inner, num_outputs=3)
        equal(read_int64s(dims.dim_sizes, 3), (2, 0, 2), "ranks")
        equal(read_int64s(dims.dims, 4), (3, 2, 0, 4), "dimensions")


@EXECUTABLES.check
def three_results(context: Context) -> None:
    """A program with results of several types gives each of them."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    first, second, third = run(context.client, _THREE, [x, np.array(3, np.int32)])
    same(first, np.ascontiguousarray(x.T), "the transposed argument")
    same(second, np.array(True), "the comparison")
    equal(third.shape, (0, 4), "shape of the empty result")


@EXECUTABLES.each([dtype for dtype in dtypes.ALL if dtype.bits >= 8])
def output_type(context: Context, dtype: DType) -> None:
    """A result states the element type that the program gives it."""
    api = context.client.api
    context.client.check_dtype(dtype)
    raw.need(api, "Executable_OutputElementTypes")
    kind = f"tensor<3x{dtype.stablehlo}>"
    program = f"module {{ func.func @main(%a: {kind}) -> {kind} {{ return %a : {kind} }} }}"
    with raw.compiled(context.client, program) as (_, inner):
        found = api.call("Executable_OutputElementTypes", executable=inner)
        code = ctypes.c_int.from_address(found.output_types).value
        equal(code, dtype.code, "PJRT_Buffer_Type of the result")


@EXECUTABLES.check
def memory_kinds(context: Context) -> None:
    """Results have memory kinds that a memory space has."""
    api = context.client.api
    raw.need(api, "Executable_OutputMemoryKinds")
    with raw.compiled(context.client, _THREE) as (_, inner):
        found = api.call("Executable_OutputMemoryKinds", executable=inner, num_outputs=3)
        texts = read_pointers(found.memory_kinds, 3)
        sizes = read_int64s(found.memory_kind_sizes, 3)
        kinds = {text(one, size) for one, size in zip(texts, sizes, strict=True)}
    known = {memory.kind for memory in context.client.memories}
    require(kinds <= known, f"found the kinds {kinds}, there are {known}")


@EXECUTABLES.check
def cost(context: Context) -> None:
    """The cost analysis has names and numbers, and larger programs cost more."""
    client = context.client

    def flops(size: int) -> float:
        x = np.ones((size, size), np.float32)
        program = build(lambda b, x: b.dot_general(x, x, lhs_contract=(1,), rhs_contract=(0,)), [x])
        with client.compile(program) as executable:
            found = executable.cost()
        require(found, "the analysis is empty")
        require(all(found), f"a property has no name: {found}")
        value = found.get("flops", float(size))
        require(isinstance(value, (int, float)), f"flops: found {value!r}")
        return float(value)  # type: ignore[arg-type]

    small, large = flops(8), flops(64)
    require(small < large, f"products of 8x8 cost {small} flops, of 64x64 {large}")


@EXECUTABLES.check
def memory_stats(context: Context) -> None:
    """The bytes of arguments and results are at least what these hold."""
    with context.client.compile(ADD) as executable:
        stats = executable.memory_stats()
    require(stats.arguments >= 512, f"two arguments of 256 bytes are {stats.arguments} bytes")
    require(stats.outputs >= 256, f"a result of 256 bytes is {stats.outputs} bytes")
    require(min(stats.temporaries, stats.generated_code, stats.aliased) >= 0, f"negative: {stats}")


@EXECUTABLES.check
def generated_code(context: Context) -> None:
    """The size of the generated code is known, or stated as unknown (negative or zero)."""
    api = context.client.api
    raw.need(api, "Executable_SizeOfGeneratedCodeInBytes")
    with raw.compiled(context.client, ADD) as (_, inner):
        sizes = {
            api.call("Executable_SizeOfGeneratedCodeInBytes", executable=inner).size_in_bytes
            for _ in range(2)
        }
    equal(len(sizes), 1, f"sizes of one program in {sizes}")


@EXECUTABLES.check
def optimized_program(context: Context) -> None:
    """The optimized program can be asked for, its size first, and is not empty."""
    api = context.client.api
    raw.need(api, "Executable_OptimizedProgram")
    program = STRUCTS["PJRT_Program"].new()
    with raw.compiled(context.client, ADD) as (_, inner):
        api.call("Executable_OptimizedProgram", executable=inner, program=program)
        size = int(program.code_size)
        require(size > 0, "the size is 0")
        memory = ctypes.create_string_buffer(size)
        program.code = ctypes.addressof(memory)
        api.call("Executable_OptimizedProgram", executable=inner, program=program)
        require(any(memory.raw), "the program is all zeros")
        require(text(program.format, program.format_size), "the format has no name")


@EXECUTABLES.check
def devices(context: Context) -> None:
    """An executable for one device names one, which the client has."""
    client = context.client
    with raw.compiled(client, ADD) as (loaded, _):
        found = client.api.call("LoadedExecutable_AddressableDevices", executable=loaded)
        listed = read_pointers(found.addressable_devices, found.num_addressable_devices)
    equal(len(listed), 1, "devices")
    require(listed[0] in [device.pointer for device in client.devices], "a foreign device")


@EXECUTABLES.check
def deterministic(context: Context) -> None:
    """One program gives the same bits for the same arguments, call after call."""
    x = np.random.default_rng(7).standard_normal((64, 64)).astype(np.float32)
    program = build(lambda b, x: b.dot_general(x, x, lhs_contract=(1,), rhs_contract=(0,)), [x])
    with context.client.compile(program) as executable:
        first = executable(x)[0].to_numpy()
        for _ in range(5):
            same(executable(x)[0].to_numpy(), first, "a product of matrices")
