"""Operations that fold, search, multiply and branch, against the reference interpreter.

Sums and products are of small whole numbers, which are exact in any order and precision: so any
difference is an error and not a matter of rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.numerics import Tolerance, build, check, numbers, whole
from pjrt_bridge_conformance.programs import F32, F64, I32, ProgramGroup, floats, ints, wholes

OPERATIONS = ProgramGroup("numerics")

# -- reductions and windows ------------------------------------------------------------------------

for _name in (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int32",
    "int64",
    "uint8",
    "uint32",
):
    OPERATIONS.program(
        f"reduce.{_name}",
        f"Sums, products, greatest and least over dimensions: {_name}.",
        lambda b, x: (
            b.reduce_sum(x, (1,)),
            b.reduce_prod(x, (2,)),
            b.reduce_max(x, (0, 2)),
            b.reduce_min(x, (0, 1, 2)),
        ),
        whole(dtypes.of(_name), 3, 4, 3, low=-2, high=2),
    )
OPERATIONS.program(
    "reduce.nan",
    "The greatest and the least of what holds a NaN is NaN.",
    lambda b, x: (b.reduce_max(x, (1,)), b.reduce_min(x, (1,))),
    np.array([[1, np.nan, 3], [np.nan, np.inf, 0], [1, 2, 3]], np.float32),
)
for _name in ("float32", "float64", "float16", "bfloat16"):
    OPERATIONS.program(
        f"reduce.nan.{_name}",
        f"The same of arrays that are worth a kernel of their own: {_name}.",
        lambda b, x: (b.reduce_max(x, (1,)), b.reduce_min(x, (1,)), b.reduce_max(x, (0,))),
        np.where(np.eye(64, 100, dtype=bool), np.nan, 1.0).astype(dtypes.of(_name).numpy),
    )
OPERATIONS.program(
    "reduce.bool",
    "All and any of booleans.",
    lambda b, x: (b.reduce_and(x, (1,)), b.reduce_or(x, (0,))),
    numbers(dtypes.of("bool"), 4, 5),
)
OPERATIONS.program(
    "reduce.nothing",
    "A reduction over no elements gives its start.",
    lambda b, x: (b.reduce_sum(x, (0,)), b.reduce_max(x, (0,)), b.reduce_prod(x, (0, 1))),
    floats(0, 3),
)
OPERATIONS.program(
    "reduce.two_operands",
    "The greatest element and its position, found together.",
    lambda b, x: b.reduce(
        [x, b.iota(x.shape, 1, I32)],
        [b.constant(-np.inf, F32), b.constant(0, I32)],
        (1,),
        lambda old, new: _later(b, old, new),
    ),
    floats(4, 9),
)


def _later(b: Builder, old: tuple[Value, ...], new: tuple[Value, ...]) -> list[Value]:
    keep = b.compare(old[0], new[0], "GE")
    return [b.select(keep, a, c) for a, c in zip(old, new, strict=True)]


_WINDOWS: dict[str, dict[str, Any]] = {
    "plain": dict(window_dimensions=(2, 3), window_strides=(1, 1), padding=((0, 0), (0, 0))),
    "strided": dict(window_dimensions=(2, 2), window_strides=(2, 3), padding=((1, 0), (0, 1))),
    "dilated": dict(
        window_dimensions=(2, 2),
        window_strides=(1, 2),
        base_dilations=(2, 1),
        window_dilations=(1, 2),
        padding=((1, 1), (0, 2)),
    ),
}
for _name, _window in _WINDOWS.items():
    OPERATIONS.program(
        f"reduce_window.{_name}",
        f"Sums and greatest of sliding windows: {_name}.",
        lambda b, x, window=_window: (
            *b.reduce_window([x], [b.constant(0, F32)], lambda o, n: b.add(o[0], n[0]), **window),
            *b.reduce_window(
                [x], [b.constant(-np.inf, F32)], lambda o, n: b.maximum(o[0], n[0]), **window
            ),
        ),
        wholes(5, 7),
    )
OPERATIONS.program(
    "select_and_scatter",
    "Each source element goes to the greatest element of its window.",
    lambda b, x, s: b.select_and_scatter(
        x,
        s,
        b.constant(0, F32),
        lambda a, c: b.compare(a, c, "GE"),
        b.add,
        window_dimensions=(2, 2),
        window_strides=(2, 1),
        padding=((0, 0), (0, 1)),
    ),
    floats(4, 5),
    wholes(2, 5, seed=1),
)

# -- sorting ---------------------------------------------------------------------------------------

for _name in ("float32", "float64", "bfloat16", "int32", "uint8", "int64"):
    OPERATIONS.program(
        f"sort.{_name}",
        f"Sorting along a dimension, upwards and downwards: {_name}.",
        lambda b, x: (
            *b.sort([x], 0, lambda a, c: b.compare(a[0], c[0], "LT")),
            *b.sort([x], 1, lambda a, c: b.compare(a[0], c[0], "GT")),
        ),
        numbers(dtypes.of(_name), 9, 11, low=-50, high=50),
    )
OPERATIONS.program(
    "sort.stable",
    "A stable sort keeps the order of equal keys, and moves other tensors along.",
    lambda b, x: b.sort([x, b.iota(x.shape, 0, I32)], 0, lambda a, c: b.compare(a[0], c[0], "LT")),
    whole(I32, 50),
)

# -- products --------------------------------------------------------------------------------------

for _name in ("float32", "float64", "float16", "bfloat16", "int32", "int8", "complex64"):
    OPERATIONS.program(
        f"dot_general.{_name}",
        f"Products of matrices, in batches and over two dimensions: {_name}.",
        lambda b, x, y: (
            b.dot_general(
                x, y, lhs_batch=(0,), rhs_batch=(0,), lhs_contract=(2,), rhs_contract=(1,)
            ),
            b.dot_general(x, x, lhs_contract=(0, 2), rhs_contract=(0, 2)),
        ),
        whole(dtypes.of(_name), 2, 3, 4, low=-2, high=2),
        whole(dtypes.of(_name), 2, 4, 5, low=-2, high=2, seed=1),
    )
OPERATIONS.program(
    "dot_general.highest",
    "With the highest precision products of float32 are as exact as float32 is.",
    lambda b, x, y: b.dot_general(x, y, lhs_contract=(1,), rhs_contract=(0,), precision="HIGHEST"),
    floats(17, 33),
    floats(33, 9, seed=1),
    within=Tolerance(absolute=1e-4),
)
OPERATIONS.program(
    "dot_general.wider",
    "Products of small integers are summed in a wider type.",
    lambda b, x, y: b.dot_general(x, y, lhs_contract=(1,), rhs_contract=(0,), out_dtype="int32"),
    numbers(dtypes.of("int8"), 5, 40, low=-128, high=127),
    numbers(dtypes.of("int8"), 40, 3, low=-128, high=127, seed=1),
)
_CONVOLUTIONS: dict[str, tuple[Sequence[int], Sequence[int], dict[str, Any]]] = {
    "plain": ((2, 3, 6, 5), (4, 3, 3, 2), dict(window_strides=(1, 1), padding=((0, 0), (0, 0)))),
    "strided": ((1, 2, 7, 7), (3, 2, 3, 3), dict(window_strides=(2, 2), padding=((1, 1), (1, 1)))),
    "transposed": (
        (1, 2, 4, 4),
        (3, 2, 3, 3),
        dict(window_strides=(1, 1), padding=((2, 2), (2, 2)), lhs_dilation=(2, 2)),
    ),
    "dilated": (
        (1, 2, 7, 8),
        (3, 2, 2, 3),
        dict(window_strides=(1, 1), padding=((0, 1), (1, 0)), rhs_dilation=(2, 2)),
    ),
    "depthwise": (
        (1, 4, 5, 5),
        (8, 1, 3, 3),
        dict(window_strides=(1, 1), padding=((1, 1), (1, 1)), feature_group_count=4),
    ),
    "batch_groups": (
        (4, 2, 5, 5),
        (6, 2, 2, 2),
        dict(window_strides=(1, 1), padding=((0, 0), (0, 0)), batch_group_count=2),
    ),
}
for _name, (_left, _right, _how) in _CONVOLUTIONS.items():
    OPERATIONS.program(
        f"convolution.{_name}",
        f"Convolutions over two dimensions: {_name}.",
        lambda b, x, k, how=_how: b.convolution(
            x, k, dimension_numbers=("NCHW", "OIHW", "NCHW"), **how
        ),
        wholes(*_left),
        wholes(*_right, seed=1),
    )
OPERATIONS.program(
    "convolution.channels_last",
    "Convolutions with the channels in the last dimension.",
    lambda b, x, k: b.convolution(
        x,
        k,
        window_strides=(1,),
        padding=((1, 1),),
        dimension_numbers=("NWC", "WIO", "NWC"),
    ),
    wholes(2, 6, 3),
    wholes(3, 3, 4, seed=1),
)
for _side, _lower, _transpose in (
    ("left", True, "NO_TRANSPOSE"),
    ("left", False, "TRANSPOSE"),
    ("right", True, "NO_TRANSPOSE"),
    ("right", False, "NO_TRANSPOSE"),
):
    OPERATIONS.program(
        f"triangular_solve.{_side}_{'lower' if _lower else 'upper'}",
        "Triangular systems are solved, and the other triangle is not read.",
        lambda b, a, x, side=_side, lower=_lower, transpose=_transpose: b.triangular_solve(
            a,
            x,
            left_side=side == "left",
            lower=lower,
            unit_diagonal=False,
            transpose_a=transpose,
        ),
        numbers(F64, 4, 4) + 6 * np.eye(4),
        numbers(F64, 4, 4, seed=1),
        within=Tolerance(absolute=1e-9),
    )

# -- control flow ----------------------------------------------------------------------------------

OPERATIONS.program(
    "while",
    "A loop runs while its condition holds, and not at all where it does not.",
    lambda b, n, x: b.while_(
        [n, x],
        lambda c: b.compare(c[0], b.constant(5, I32), "LT"),
        lambda c: [b.add(c[0], b.constant(1, I32)), b.add(c[1], c[1])],
    ),
    ints(0),
    wholes(3),
)
OPERATIONS.program(
    "if",
    "Of two branches one is taken.",
    lambda b, p, q, x: (
        *b.if_(p, lambda: b.add(x, x), lambda: b.negate(x)),
        *b.if_(q, lambda: b.add(x, x), lambda: b.negate(x)),
    ),
    np.array(True),
    np.array(False),
    floats(4),
)
OPERATIONS.program(
    "case",
    "Of several branches one is taken, the last where the index is outside.",
    lambda b, i, j, k, x: [
        b.case(
            index,
            [
                lambda: b.add(x, x),
                lambda: b.negate(x),
                lambda: b.multiply(x, b.constant([3.0] * 4, F32)),
            ],
        )[0]
        for index in (i, j, k)
    ],
    ints(0),
    ints(1),
    ints(-5),
    floats(4),
)
OPERATIONS.program(
    "parameters",
    "A program gives back its arguments, in any order and more than once.",
    lambda b, x, y: (y, x, y),
    floats(3),
    whole(I32, 2),
)
OPERATIONS.program(
    "rank_8",
    "Tensors of eight dimensions work as others do.",
    lambda b, x: (b.transpose(b.add(x, x), (7, 6, 5, 4, 3, 2, 1, 0)), b.reduce_sum(x, (1, 3, 5))),
    wholes(2, 1, 3, 2, 1, 2, 2, 1),
)
OPERATIONS.program(
    "empty",
    "Tensors without elements work as others do.",
    lambda b, x: (b.add(x, x), b.transpose(x, (1, 0)), b.concatenate([x, x], 0)),
    floats(0, 3),
)


@OPERATIONS.check
def wide_program(context: Context) -> None:
    """A program may have a hundred parameters and results."""
    arrays = [whole(I32, 2, seed=index) for index in range(100)]
    check(context.client, build(lambda b, *xs: [b.add(x, xs[0]) for x in xs], arrays), arrays)


@OPERATIONS.check
def long_program(context: Context) -> None:
    """A program may have a thousand operations after each other."""

    def body(b: Builder, x: Value) -> Value:
        for index in range(1000):
            x = b.xor(x, b.constant([index, index + 1], I32))
        return x

    arrays = [whole(I32, 2)]
    check(context.client, build(body, arrays), arrays)
