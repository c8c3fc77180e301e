"""Attacks by what MLIR accepts and compilers do not survive: calls, sizes, shardings, layouts."""

from __future__ import annotations

from itertools import product

from tests.attacks.programs import client
from tests.attacks.registry import subject

A = "tensor<8xf32>"
TARGETS = (
    "AllocateBuffer", "ApproxTopK", "Cholesky", "Eigh", "InspectSharding", "LayoutConstraint",
    "MoveToHost", "PadToStatic", "PartialReduce", "ProductOfElementaryHouseholderReflectors", "Qr",
    "SPMDFullToShardShape", "SPMDShardToFullShape", "ShardBarrierFrom", "ShardBarrierTo",
    "Sharding", "SliceToDynamic", "TopK", "X64Combine", "__onednn$matmul", "__onednn$softmax",
    "annotate_device_placement", "lapack_sgesdd", "mhlo.topk", "shape_assertion", "system",
    "xla.sdy.FuncResultSharding", "xla.sdy.GlobalToLocalShape", "xla.sdy.PropagationBarrier",
    "xla.sdy.ShardingGroup", "xla_ffi_python_cpu_callback",
)  # fmt: skip
FORMS = (
    (0, (A,), ""),
    (1, (A,), ""),
    (2, (A,), ""),
    (1, (A, "tensor<2xi32>"), ""),
    (1, ("tensor<3xi32>",), ""),
    (1, (), "has_side_effect = true"),
    (1, (A,), 'mhlo.sharding = "{devices=[3]0,1,2}"'),
    (1, (A,), 'backend_config = "unspecified_dims=[9]"'),
    (1, (A,), "api_version = 4 : i32"),
)
"""Operands, results and settings of a call."""
CALLS = tuple(product(TARGETS, FORMS))


@subject(len(CALLS))
def custom_calls(number: int) -> None:
    """Calls that the compiler knows, in every form."""
    target, (operands, results, settings) = CALLS[number]
    given = ", ".join(["%a"] * operands)
    kinds, found = ", ".join([A] * operands), ", ".join(results)
    named = f"%0:{len(results)} = " if results else ""
    call = f'{named}stablehlo.custom_call @"{target}"({given}) {{{settings}}}'
    client().compile(
        f"func.func @main(%a: {A}) -> {A} {{\n{call} : ({kinds}) -> ({found})\nreturn %a : {A}\n}}"
    ).close()


SIZES = (
    "9223372036854775807x", "4611686018427387904x4x", "3037000500x3037000500x", "8x" * 20,
    "0x4611686018427387904x4x", "2147483648x2147483648x", "281474976710656x", "1x" * 300, "0x",
    "4294967296x65537x", "  9223372036854775807 x\n", "?x4611686018427387904x4x",
)  # fmt: skip
USES = (
    "func.func @main(%a: TYPE) -> TYPE { return %a : TYPE }",
    "func.func @main(%a: TYPE) -> TYPE { %0 = stablehlo.add %a, %a : TYPE\n return %0 : TYPE }",
    "func.func @main() -> TYPE { %0 = stablehlo.iota dim = 0 : TYPE\n return %0 : TYPE }",
    "func.func @main() -> TYPE { %0 = stablehlo.constant dense<1.0> : TYPE\n return %0 : TYPE }",
    "func.func @main(%a: tensor<f32>) -> tensor<f32> { %0 = stablehlo.broadcast_in_dim %a,"
    " dims = [] : (tensor<f32>) -> TYPE\n return %a : tensor<f32> }",
)
ARRAYS = tuple(product(USES, SIZES))


@subject(len(ARRAYS))
def sizes_of_arrays(number: int) -> None:
    use, sizes = ARRAYS[number]
    client().compile(use.replace("TYPE", f"tensor<{sizes}f32>")).close()


SHARDINGS = (
    "devices=[3]0,1,2", "devices=[8]<=[8]", "devices=[0]<=[0]", "devices=[-1]<=[1]", "manual",
    "devices=[1,1,1]0", "maximal device=99", "devices=[9999999999]<=[9999999999]", "unknown",
    "devices=[2]0,0", "devices=[2]0,-1", "devices=[1, 0]0",
    "devices=[2]0,5 last_tile_dims={manual}",
    "devices = [ 00 ] <= [ 0 ]", "garbage", "{replicated},{replicated}", "devices=[1,0]<=[0]",
)  # fmt: skip
PLACES = (
    f'func.func @main(%a: {A} {{mhlo.sharding = "{{X}}"}}) -> {A} {{ return %a : {A} }}',
    f'func.func @main(%a: {A}) -> ({A} {{mhlo.sharding = "{{X}}"}}) {{ return %a : {A} }}',
    f"func.func @main(%a: {A}) -> {A} {{ %0 = stablehlo.add %a, %a "
    f'{{mhlo.sharding = "{{X}}"}} : {A}\n return %0 : {A} }}',
    f"func.func @main(%a: {A}) -> {A} {{ %0 = stablehlo.custom_call @Sharding(%a)"
    f' {{mhlo.sharding = "{{X}}"}} : ({A}) -> {A}\n return %0 : {A} }}',
)
DIVIDED = tuple(product(PLACES, SHARDINGS))


@subject(len(DIVIDED))
def shardings(number: int) -> None:
    place, sharding = DIVIDED[number]
    client().compile(place.replace("X", sharding)).close()


NUMBERS = ("9" * 401, "9" * 1_000_000, "1." + "9" * 100_000, "1.0e99999999999", "-" + "1" * 50_000)


@subject(len(NUMBERS))
def numbers_of_text(number: int) -> None:
    client().compile(
        f"module attributes {{a.b = {NUMBERS[number]} : f64}} {{ func.func @main() {{ return }} }}"
    ).close()
