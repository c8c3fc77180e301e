"""Rows of a table by their indices, as an embedding looks them up.

XLA's compiler copies them element by element. An index out of range is an error here, as in eager.
"""

from __future__ import annotations

from collections.abc import Mapping

from pjrt_bridge.stablehlo import TensorType, Value, is_in_memory, memory_order
from pjrt_bridge.torch_interop.lowering.api import Context
from pjrt_bridge_cpu.aten.calls import Cut, KernelCall, Load, Out
from pjrt_bridge_cpu.aten.operators import INDEX_SELECT
from pjrt_bridge_cpu.aten.rules import BFLOAT16, FLOAT32, PIECES, KernelRule, UsableKernels, grain

LEAST = 1 << 14
"""Elements of the result from which on it is worth a call."""


def embedding(
    c: Context,
    use: UsableKernels,
    table: Value,
    places: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value | None:
    """`aten.embedding`; its other arguments are for its gradient."""
    return index_select(c, use, table, 0, places)


def index_select(
    c: Context, use: UsableKernels, table: Value, dim: int, places: Value
) -> Value | None:
    """`aten.index_select` of rows."""
    if table.rank != 2 or dim % 2 or not _takes(table, places):
        return None
    width = table.shape[1]
    result = TensorType((places.size, width), table.dtype)
    call = KernelCall(
        INDEX_SELECT,
        {
            "self": table,
            "dim": 0,
            "index": c.b.reshape(places, (places.size,)),
            "out": Out(),
        },
        [result],
        cut=Cut(grain(places.size * width, places.size), {"index": 0}, (0,), PIECES),
        load=Load("index_select", places.size * width),
    )
    found = use(c.b, call, table.dtype)
    return None if found is None else c.reshape(found[0], c.output.shape)


def _takes(table: Value, places: Value) -> bool:
    """Whether a table is row-major in memory: to copy it takes longer than the look-up."""
    return (
        table.dtype in (FLOAT32, BFLOAT16)
        and str(places.dtype) in ("int32", "int64")
        and places.size * table.shape[1] >= LEAST
        and is_in_memory(table)
        and memory_order(table) == (0, 1)
    )


RULES: Mapping[str, KernelRule] = {
    "aten.embedding.default": embedding,
    "aten.index_select.default": index_select,
}
"""By operator of a graph."""
