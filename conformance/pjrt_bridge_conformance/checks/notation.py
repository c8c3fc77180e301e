"""Operations that the Builder does not write: programs in StableHLO text, compared with NumPy.

Also those that are about shapes known at run time: their operands are constants here, so that a
plugin without dynamic shapes can run them after constant folding; if it cannot, it has to say so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.errors import PjrtError
from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import equal, same
from pjrt_bridge_conformance.numerics import (
    check,
    numbers,
    whole,
)
from pjrt_bridge_conformance.outcomes import Unsupported
from pjrt_bridge_conformance.programs import ProgramGroup, main

NOTATION = ProgramGroup("numerics")

F32, F64, U64, C64 = (dtypes.of(name) for name in ("float32", "float64", "uint64", "complex64"))


# -- programs that only text can express -----------------------------------------------------------

_V = "tensor<4xf32>"
_A = (numbers(F32, 4), numbers(F32, 4, seed=1))

NOTATION.text(
    "map",
    "A function of scalars is applied to each element.",
    main(
        f"%x: {_V}, %y: {_V}",
        _V,
        '%0 = "stablehlo.map"(%x, %y) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): '
        "%m = stablehlo.multiply %a, %b : tensor<f32> stablehlo.return %m : tensor<f32> }) "
        f"{{dimensions = array<i64: 0>}} : ({_V}, {_V}) -> {_V} return %0 : {_V}",
    ),
    _A,
    lambda x, y: x * y,
)
NOTATION.text(
    "optimization_barrier",
    "A barrier against optimizations gives its operands.",
    main(
        f"%x: {_V}, %y: {_V}",
        f"({_V}, {_V})",
        f"%0:2 = stablehlo.optimization_barrier %x, %y : {_V}, {_V} return %0#1, %0#0 : {_V}, {_V}",
    ),
    _A,
    lambda x, y: [y, x],
)
NOTATION.text(
    "tuple",
    "Elements of a tuple are what was put into it.",
    main(
        f"%x: {_V}, %y: {_V}",
        _V,
        f"%t = stablehlo.tuple %x, %y : tuple<{_V}, {_V}> "
        f"%0 = stablehlo.get_tuple_element %t[1] : (tuple<{_V}, {_V}>) -> {_V} return %0 : {_V}",
    ),
    _A,
    lambda x, y: y,
)
NOTATION.text(
    "after_all",
    "Tokens order effects, and cost nothing where there are none.",
    main(
        f"%x: {_V}",
        _V,
        "%a = stablehlo.create_token : !stablehlo.token "
        "%b = stablehlo.after_all %a, %a : !stablehlo.token "
        f"%0 = stablehlo.add %x, %x : {_V} return %0 : {_V}",
    ),
    _A[:1],
    lambda x: x + x,
)
NOTATION.text(
    "call",
    "A program may have several functions.",
    main(
        f"%x: {_V}",
        _V,
        f"%0 = func.call @twice(%x) : ({_V}) -> {_V} %1 = func.call @twice(%0) : ({_V}) -> {_V} "
        f"return %1 : {_V}",
        f"func.func private @twice(%x: {_V}) -> {_V} "
        f"{{ %0 = stablehlo.add %x, %x : {_V} return %0 : {_V} }}",
    ),
    _A[:1],
    lambda x: np.asarray(4 * x),
)
NOTATION.text(
    "composite",
    "A composite operation means what its decomposition does.",
    main(
        f"%x: {_V}",
        _V,
        '%0 = stablehlo.composite "my.twice" %x {decomposition = @twice} : '
        f"({_V}) -> {_V} return %0 : {_V}",
        f"func.func private @twice(%x: {_V}) -> {_V} "
        f"{{ %0 = stablehlo.add %x, %x : {_V} return %0 : {_V} }}",
    ),
    _A[:1],
    lambda x: x + x,
)
NOTATION.text(
    "get_dimension_size",
    "The size of a dimension is a number of the program.",
    main(
        f"%x: {_V}",
        "tensor<i32>",
        f"%0 = stablehlo.get_dimension_size %x, dim = 0 : ({_V}) -> tensor<i32> "
        "return %0 : tensor<i32>",
    ),
    _A[:1],
    lambda x: np.array(4, np.int32),
)
NOTATION.text(
    "torch_index_select",
    "Slices of a dimension are taken by index.",
    main(
        "%x: tensor<5x3xf32>, %i: tensor<2xi32>",
        "tensor<2x3xf32>",
        '%0 = "stablehlo.torch_index_select"(%x, %i) {dim = 0 : i64, batch_dims = 0 : i64} : '
        "(tensor<5x3xf32>, tensor<2xi32>) -> tensor<2x3xf32> return %0 : tensor<2x3xf32>",
    ),
    (numbers(F32, 5, 3), np.array([4, 1], np.int32)),
    lambda x, i: x[i],
)
NOTATION.text(
    "einsum",
    "Sums of products by index letters.",
    main(
        "%x: tensor<2x3x4xf32>, %y: tensor<2x4x5xf32>",
        "tensor<2x3x5xf32>",
        '%0 = stablehlo.einsum %x, %y, config = "bij,bjk->bik" : '
        "(tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32> return %0 : tensor<2x3x5xf32>",
    ),
    (whole(F32, 2, 3, 4), whole(F32, 2, 4, 5)),
    lambda x, y: x @ y,
)
NOTATION.text(
    "dot",
    "Products of a matrix and a vector in the short form.",
    main(
        "%x: tensor<3x4xf32>, %y: tensor<4xf32>",
        "tensor<3xf32>",
        "%0 = stablehlo.dot %x, %y : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3xf32> "
        "return %0 : tensor<3xf32>",
    ),
    (whole(F32, 3, 4), whole(F32, 4)),
    lambda x, y: x @ y,
)
NOTATION.text(
    "broadcast",
    "Broadcasting by new dimensions in front.",
    main(
        f"%x: {_V}",
        "tensor<2x3x4xf32>",
        f"%0 = stablehlo.broadcast %x, sizes = [2, 3] : ({_V}) -> tensor<2x3x4xf32> "
        "return %0 : tensor<2x3x4xf32>",
    ),
    _A[:1],
    lambda x: np.broadcast_to(x, (2, 3, 4)).copy(),
)

# -- shapes known at run time ----------------------------------------------------------------------

_NEIGHBOURS = (np.eye(5, 4) + np.eye(5, 4, -1)).astype(np.float32)
_SIZES = "%s = stablehlo.constant dense<[2, 4]> : tensor<2xi64> "
_M = "tensor<2x4xf32>"
_DYNAMIC: dict[str, tuple[str, str, Callable[[Array], Array]]] = {
    "dynamic_reshape": (
        f"%0 = stablehlo.dynamic_reshape %x, %s : (tensor<8xf32>, tensor<2xi64>) -> {_M}",
        "tensor<8xf32>",
        lambda x: x.reshape(2, 4),
    ),
    "dynamic_broadcast_in_dim": (
        "%0 = stablehlo.dynamic_broadcast_in_dim %x, %s, dims = [1] : "
        f"(tensor<4xf32>, tensor<2xi64>) -> {_M}",
        "tensor<4xf32>",
        lambda x: np.broadcast_to(x, (2, 4)).copy(),
    ),
    "dynamic_iota": (
        f"%i = stablehlo.dynamic_iota %s, dim = 1 : (tensor<2xi64>) -> {_M} "
        f"%0 = stablehlo.add %x, %i : {_M}",
        _M,
        lambda x: (x + np.arange(4)).astype(np.float32),
    ),
    "dynamic_pad": (
        "%p = stablehlo.constant dense<0.0> : tensor<f32> "
        "%l = stablehlo.constant dense<[0, 1]> : tensor<2xi64> "
        "%h = stablehlo.constant dense<[1, 1]> : tensor<2xi64> "
        "%n = stablehlo.constant dense<0> : tensor<2xi64> "
        "%0 = stablehlo.dynamic_pad %x, %p, %l, %h, %n : (tensor<1x2xf32>, tensor<f32>, "
        f"tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> {_M}",
        "tensor<1x2xf32>",
        lambda x: np.pad(x, ((0, 1), (1, 1))),
    ),
    "real_dynamic_slice": (
        "%l = stablehlo.constant dense<[1, 0]> : tensor<2xi64> "
        "%h = stablehlo.constant dense<[3, 8]> : tensor<2xi64> "
        "%n = stablehlo.constant dense<[1, 2]> : tensor<2xi64> "
        "%0 = stablehlo.real_dynamic_slice %x, %l, %h, %n : (tensor<3x8xf32>, tensor<2xi64>, "
        f"tensor<2xi64>, tensor<2xi64>) -> {_M}",
        "tensor<3x8xf32>",
        lambda x: x[1:3, ::2].copy(),
    ),
    "dynamic_gather": (
        "%i = stablehlo.constant dense<[0, 2]> : tensor<2xi64> "
        "%z = stablehlo.constant dense<[1, 4]> : tensor<2xi64> "
        '%0 = "stablehlo.dynamic_gather"(%x, %i, %z) {dimension_numbers = '
        "#stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], "
        "index_vector_dim = 1>, indices_are_sorted = false} : "
        f"(tensor<3x4xf32>, tensor<2xi64>, tensor<2xi64>) -> {_M}",
        "tensor<3x4xf32>",
        lambda x: x[[0, 2]],
    ),
    "dynamic_conv": (
        "%k = stablehlo.constant dense<1.0> : tensor<1x1x2xf32> "
        "%p = stablehlo.constant dense<[[1, 1]]> : tensor<1x2xi64> "
        '%c = "stablehlo.dynamic_conv"(%x, %k, %p) {dimension_numbers = '
        "#stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>, feature_group_count = 1 : i64, "
        "batch_group_count = 1 : i64} : (tensor<2x1x3xf32>, tensor<1x1x2xf32>, tensor<1x2xi64>) "
        "-> tensor<2x1x4xf32> "
        f"%0 = stablehlo.reshape %c : (tensor<2x1x4xf32>) -> {_M}",
        "tensor<2x1x3xf32>",
        lambda x: (np.pad(x, ((0, 0), (0, 0), (1, 1)))[:, 0] @ _NEIGHBOURS).astype(np.float32),
    ),
}


@NOTATION.each(_DYNAMIC)
def run_time_shapes(context: Context, name: str) -> None:
    """Sizes that come from constants of the program work, or are refused in a clean way."""
    operation, kind, oracle = _DYNAMIC[name]
    text = main(f"%x: {kind}", _M, f"{_SIZES}{operation} return %0 : {_M}")
    program = Program.from_text(text)
    shape = program.signature.parameters[0].type.shape
    x = whole(F32, *shape)
    try:
        check(context.client, program, [x], oracle=oracle)
    except PjrtError as error:
        raise Unsupported(f"refused in a clean way: {error}") from error


@NOTATION.each([0, 3, 8])
def set_dimension_size(context: Context, size: int) -> None:
    """A result with a bounded dimension has as many rows as the program says."""
    x = whole(F32, 8, 2)
    bounded = "tensor<?x2xf32, #stablehlo.bounds<8, ?>>"
    text = main(
        "%x: tensor<8x2xf32>, %n: tensor<i32>",
        bounded,
        f"%0 = stablehlo.set_dimension_size %x, %n, dim = 0 : (tensor<8x2xf32>, tensor<i32>) "
        f"-> {bounded} return %0 : {bounded}",
    )
    try:
        with context.client.compile(text) as executable:
            (result,) = executable(x, np.array(size, np.int32))
            equal(result.true_shape(), (size, 2), "true shape")
            same(result.to_numpy(), x[:size], "rows")
    except PjrtError as error:
        raise Unsupported(f"refused in a clean way: {error}") from error
