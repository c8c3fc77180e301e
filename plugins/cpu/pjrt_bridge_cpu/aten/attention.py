"""Attention without the matrix of all scores: PyTorch's flash kernel for CPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import Builder, Order, TensorType, Value, memory_order
from pjrt_bridge.torch_interop.lowering.api import Attention, Context
from pjrt_bridge_cpu.aten.calls import Cut, KernelCall, Load
from pjrt_bridge_cpu.aten.operators import ATTENTION, ATTENTION_BACKWARD
from pjrt_bridge_cpu.aten.rules import BFLOAT16, FLOAT32, KernelRule, UsableKernels, grain
from pjrt_bridge_cpu.few_queries import FewQueries, added

LEAST = 100_000
"""Multiplications from which on it is worth a call."""

_SCORES = 1 << 24
"""Scores from which on the matrix of them is not worth its memory, whatever its time."""

_WRITTEN_OUT = 1 << 22
"""Scores from which on products and a softmax, which write them to memory, take longer. Below that
they are in a cache, and a backward pass has no use for computing them again."""

_HEADS_INSIDE = (0, 2, 1, 3)
"""(batch, heads, length, size) with the heads of a position together, as the kernel writes it."""
_ROWS = (0, 2, 1)
"""The same for (batch, heads, length)."""


class AtenAttention(FewQueries):
    """Attention by PyTorch.

    Attributes:
        use: emits the calls.
    """

    use: UsableKernels

    def attends(self, dtype: DType, batches: int, queries: int, keys: int, *, trains: bool) -> bool:
        """See `Kernels.attends`."""
        is_large = dtype in (FLOAT32, BFLOAT16) and batches * queries * keys >= _WRITTEN_OUT
        return is_large or super().attends(dtype, batches, queries, keys, trains=trains)

    def attention(
        self,
        b: Builder,
        query: Value,
        key: Value,
        value: Value,
        mask: Value | None,
        how: Attention,
    ) -> tuple[Value, Value] | None:
        """See `Kernels.attention`."""
        few = super().attention(b, query, key, value, mask, how)
        if few is not None:
            return few
        sides = {"query": query, "key": key, "value": value}
        work = _work(query, key)
        if not _takes(*sides.values(), mask=mask) or key.shape != value.shape or work < LEAST:
            return None
        mask = None if mask is None else added(b, mask)
        call = KernelCall(
            ATTENTION,
            {**sides, "is_causal": how.is_causal, "attn_mask": mask, "scale": how.scale},
            [query.type, TensorType(query.shape[:3], FLOAT32)],
            returns=(0, 1),
            orders={name: _order(side) for name, side in sides.items()},
            result_orders=[_HEADS_INSIDE, _ROWS],
            cut=_cut(sides, mask, work, 2),
            load=_load("attention", query, key, mask, how.is_causal),
        )
        found = self.use(b, call, query.dtype)
        return None if found is None else (found[0], found[1])


def attention_backward(
    c: Context,
    use: UsableKernels,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value | None, ...] | None:
    """The gradients of query, key and value."""
    sides = {"grad_out": grad_out, "query": query, "key": key, "value": value, "out": out}
    work = _work(query, key)
    if dropout_p or not _takes(*sides.values(), mask=attn_mask) or work < LEAST:
        return None
    mask = None if attn_mask is None else added(c.b, attn_mask)
    call = KernelCall(
        ATTENTION_BACKWARD,
        {
            **sides,
            "logsumexp": logsumexp,
            "dropout_p": dropout_p,
            "is_causal": is_causal,
            "attn_mask": mask,
            "scale": scale,
        },
        [side.type for side in (query, key, value)],
        returns=(0, 1, 2),
        orders={**{name: _order(side) for name, side in sides.items()}, "logsumexp": _ROWS},
        result_orders=[_HEADS_INSIDE] * 3,
        cut=_cut({**sides, "logsumexp": logsumexp}, mask, work, 3),
        load=_load("attention backward", query, key, mask, is_causal),
    )
    found = use(c.b, call, query.dtype)
    return None if found is None else c.promised(*found)


def _takes(*sides: Value, mask: Value | None) -> bool:
    dtype = sides[0].dtype
    return (
        dtype in (FLOAT32, BFLOAT16)
        and all(side.dtype == dtype and side.rank == 4 and side.size for side in sides)
        # The kernel does not check that, and reads out of bounds where a side has fewer heads.
        and len({side.shape[1] for side in sides}) == 1
        and (
            mask is None
            or ((mask.dtype.is_bool or mask.dtype in (dtype, FLOAT32)) and mask.rank in (2, 4))
        )
    )


def _work(query: Value, key: Value) -> int:
    return 2 * query.size * key.shape[2]


def _load(kind: str, query: Value, key: Value, mask: Value | None, is_causal: bool) -> Load | None:
    scores = query.shape[2] * key.shape[2]
    if scores * math.prod(query.shape[:2]) >= _SCORES:
        return None
    how = "causal " if is_causal else "masked " if mask is not None else ""
    return Load(how + kind, scores)


def _order(side: Value) -> Order:
    """The order of an operand, if the elements of a head are together, else row-major."""
    order = memory_order(side)
    return order if order[-1] == side.rank - 1 else tuple(range(side.rank))


def _cut(sides: Mapping[str, Value], mask: Value | None, work: int, results: int) -> Cut | None:
    """Along the batch, or the heads where all sides have as many."""
    dim = 0 if sides["query"].shape[0] > 1 else 1
    length = sides["query"].shape[dim]
    if any(side.shape[dim] != length for side in sides.values()):
        return None
    operands: dict[str, Any] = dict.fromkeys(sides, dim)
    if mask is not None and mask.rank == 4 and mask.shape[dim] == length:
        operands["attn_mask"] = dim
    return Cut(grain(work, length), operands, (dim,) * results)


RULES: Mapping[str, KernelRule] = {
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": attention_backward,
}
"""By operator of a graph."""
