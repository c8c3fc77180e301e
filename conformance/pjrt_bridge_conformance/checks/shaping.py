"""Constants, shapes, slices, gather and scatter, against the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge_conformance.numerics import whole
from pjrt_bridge_conformance.programs import F32, I32, ProgramGroup, floats, ints, wholes

SHAPING = ProgramGroup("numerics")

# -- constants and shapes --------------------------------------------------------------------------

for _name in (dtype.name for dtype in dtypes.ALL):
    SHAPING.program(
        f"constant.{_name}",
        f"Constants of a program have their values: {_name}.",
        lambda b, name=_name: (
            b.constant(whole(dtypes.of(name), 2, 3, low=-1, high=1)),
            b.full((3,), 1, name),
        ),
    )
for _name in ("int32", "float32", "bfloat16", "uint8", "complex64"):
    SHAPING.program(
        f"iota.{_name}",
        f"The operation iota counts along a dimension: {_name}.",
        lambda b, name=_name: (b.iota((3, 5), 0, name), b.iota((3, 5), 1, name)),
    )
SHAPING.program(
    "reshape",
    "Reshaping keeps the row-major order.",
    lambda b, x: (b.reshape(x, (4, 6)), b.reshape(x, (24,)), b.reshape(x, (1, 2, 12))),
    floats(2, 3, 4),
)
SHAPING.program(
    "transpose",
    "Transposing permutes dimensions.",
    lambda b, x: (b.transpose(x, (2, 0, 1)), b.transpose(x, (0, 2, 1))),
    floats(2, 3, 4),
)
SHAPING.program(
    "broadcast_in_dim",
    "Broadcasting repeats along new dimensions and those of size 1.",
    lambda b, x: (
        b.broadcast_in_dim(x, (4, 3, 5), (1, 2)),
        b.broadcast_in_dim(b.constant(2.5, F32), (2, 2), ()),
    ),
    floats(3, 1),
)
SHAPING.program(
    "slice",
    "Slices have starts, limits and strides.",
    lambda b, x: (b.slice(x, (1, 0), (5, 7), (2, 3)), b.slice(x, (2, 2), (2, 4))),
    floats(6, 7),
)
SHAPING.program(
    "pad",
    "Padding before, after and between elements, also negative.",
    lambda b, x: (
        b.pad(x, b.constant(9, F32), (1, 0), (2, 1), (1, 0)),
        b.pad(x, b.constant(9, F32), (-1, 2), (0, -1), (0, 2)),
    ),
    floats(3, 4),
)
SHAPING.program(
    "concatenate",
    "Tensors are joined along a dimension, empty ones too.",
    lambda b, x, y: (
        b.concatenate([x, y, x], 1),
        b.concatenate([x, b.slice(x, (0, 0), (0, 3))], 0),
    ),
    floats(2, 3),
    floats(2, 4),
)
SHAPING.program(
    "reverse",
    "Elements are reversed along dimensions.",
    lambda b, x: (b.reverse(x, (0,)), b.reverse(x, (0, 2))),
    floats(2, 3, 4),
)
SHAPING.program(
    "dynamic_slice",
    "Starts of dynamic slices are clamped into the operand.",
    lambda b, x, i, j: (b.dynamic_slice(x, (i, j), (2, 3)), b.dynamic_slice(x, (j, i), (4, 2))),
    floats(5, 6),
    ints(-3),
    ints(99),
)
SHAPING.program(
    "dynamic_update_slice",
    "Updates at run-time starts, clamped into the operand.",
    lambda b, x, u, i, j: (
        b.dynamic_update_slice(x, u, (i, j)),
        b.dynamic_update_slice(x, u, (j, i)),
    ),
    floats(5, 6),
    floats(2, 2, seed=1),
    ints(1),
    ints(99),
)

# -- gather and scatter ----------------------------------------------------------------------------

_ROWS: dict[str, Any] = dict(
    offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=1
)
SHAPING.program(
    "gather.rows",
    "Rows are gathered by index.",
    lambda b, x, i: b.gather(x, i, **_ROWS, slice_sizes=(1, 4)),
    floats(5, 4),
    ints([[0], [4], [2], [2]]),
)
SHAPING.program(
    "gather.clamped",
    "Indices outside are clamped to the last slice that fits.",
    lambda b, x, i: b.gather(x, i, **_ROWS, slice_sizes=(1, 4)),
    floats(5, 4),
    ints([[-7], [99], [5]]),
)
SHAPING.program(
    "gather.windows",
    "Windows at pairs of indices.",
    lambda b, x, i: b.gather(
        x,
        i,
        offset_dims=(1, 2),
        collapsed_slice_dims=(),
        start_index_map=(1, 0),
        index_vector_dim=1,
        slice_sizes=(2, 3),
    ),
    floats(5, 6),
    ints([[0, 0], [3, 1], [9, 9]]),
)
SHAPING.program(
    "gather.batches",
    "Batch dimensions of operand and indices go together.",
    lambda b, x, i: b.gather(
        x,
        i,
        offset_dims=(),
        collapsed_slice_dims=(1,),
        operand_batching_dims=(0,),
        start_indices_batching_dims=(0,),
        start_index_map=(1,),
        index_vector_dim=2,
        slice_sizes=(1, 1),
    ),
    floats(3, 5),
    ints([[[0], [4]], [[1], [1]], [[2], [3]]]),
)

_INTO_ROWS: dict[str, Any] = dict(
    update_window_dims=(1,),
    inserted_window_dims=(0,),
    scatter_dims_to_operand_dims=(0,),
    index_vector_dim=1,
)
_COMBINE: dict[str, Callable[[Builder, Value, Value], Value]] = {
    "replace": lambda b, old, new: new,
    "add": lambda b, old, new: b.add(old, new),
    "multiply": lambda b, old, new: b.multiply(old, new),
    "maximum": lambda b, old, new: b.maximum(old, new),
    "minimum": lambda b, old, new: b.minimum(old, new),
}
for _name, _combine in _COMBINE.items():
    SHAPING.program(
        f"scatter.{_name}",
        f"Rows are combined with updates, those outside are ignored: {_name}.",
        lambda b, x, i, u, combine=_combine: b.scatter(
            [x], i, [u], lambda old, new: combine(b, old[0], new[0]), **_INTO_ROWS
        ),
        wholes(5, 4),
        # Replacing twice would leave the winner open.
        ints([[0], [4], [99], [-1]]) if _name == "replace" else ints([[0], [4], [0], [99], [-1]]),
        wholes(4 if _name == "replace" else 5, 4, seed=1),
    )
SHAPING.program(
    "scatter.two_operands",
    "Two tensors are updated together.",
    lambda b, x, y, i, u, v: b.scatter(
        [x, y],
        i,
        [u, v],
        lambda old, new: (b.add(old[0], new[0]), b.maximum(old[1], new[1])),
        **_INTO_ROWS,
    ),
    wholes(4, 3),
    whole(I32, 4, 3),
    ints([[1], [1], [3]]),
    wholes(3, 3, seed=2),
    whole(I32, 3, 3, seed=3),
)
