"""Attention as custom calls that XLA's CUDA compiler replaces by fused kernels of cuDNN.

The targets are those that `jax.nn.dot_product_attention(implementation="cudnn")` emits; their
`backend_config` is a `GpuBackendConfig` of XLA (backend_configs.proto) as JSON. A call takes
its sides as (batch, heads, length, size), or as (batch, length, heads, size), and gives results as
(batch, heads, length, size), which lie in memory as the sides do. The last result of each is the
memory that cuDNN works in, whose size the compiler fills in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, TensorType, Value, memory_order
from pjrt_bridge.stablehlo.kernel_attributes import Attention

FORWARD, BACKWARD = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"

_ELEMENTS = {"bfloat16": "BF16", "float16": "F16"}
_LARGEST_SIZE = 128
"""Of a head, on every GPU that cuDNN has fused attention for."""

_HEADS_INSIDE = (0, 2, 1, 3)
"""(batch, heads, length, size) with the heads of a position together, and back."""

_Dimensions = tuple[int, int, tuple[int, int], tuple[int, int]]
"""Of a product: those of the left and the right side that are summed over, and the batches."""


@dataclass(frozen=True)
class Call:
    """A call without its operands.

    Attributes:
        target: its name.
        operands: types of the operands.
        results: types of the results, the last of which is cuDNN's own memory.
        result_layouts: minor-to-major.
        config: the `backend_config`.
    """

    target: str
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    result_layouts: tuple[tuple[int, ...], ...]
    config: str

    def emit(self, b: Builder, operands: Sequence[Value]) -> tuple[Value, ...]:
        """Write it; the results but the last."""
        found = b.custom_call(
            self.target,
            operands,
            self.results,
            backend_config=self.config,
            api_version=_STATUS_RETURNING,
            operand_layouts=[tuple(reversed(range(len(item.shape)))) for item in self.operands],
            result_layouts=self.result_layouts,
        )
        return found[:-1]


_STATUS_RETURNING = 2
"""Of `CustomCallApiVersion`."""


def takes(query: Value, key: Value, value: Value, how: Attention) -> bool:
    """Whether cuDNN has a kernel for attention without a mask of its own.

    Args:
        query: (batch, heads, queries, size).
        key: (batch, key heads, keys, size); consecutive query heads share a key head.
        value: as the keys.
        how: the numbers; a causal mask is for as many queries as keys.
    """
    sides = (query, key, value)
    if any(side.rank != 4 or side.dtype != query.dtype or not side.size for side in sides):
        return False
    (batch, heads, queries, size), (key_batch, key_heads, keys, key_size) = query.shape, key.shape
    return (
        query.dtype.name in _ELEMENTS
        and key.shape == value.shape
        and (batch, size) == (key_batch, key_size)
        and heads % key_heads == 0
        and size <= _LARGEST_SIZE
        and size % 8 == 0
        and queries % 2 == keys % 2 == 0
        and (queries == keys or not how.is_causal)
        and math.isfinite(how.scale)
    )


def forward(
    query: Value, key: Value, value: Value, how: Attention
) -> tuple[Call, tuple[Value, ...], bool]:
    """The call for output and logarithms of sums; its sides, and whether their heads are inside."""
    inside = memory_order(query) == _HEADS_INSIDE
    sides = (query, key, value)
    batch, length = (0, 2 if inside else 1), 1 if inside else 2
    dimensions: dict[str, _Dimensions] = {
        "bmm1": (3, 3, batch, batch),
        "bmm2": (3, length, (0, 1), batch),
    }
    sums = TensorType(query.shape[:3], dtypes.of("float32"))
    made = _call(FORWARD, sides, [query.type], [sums], dimensions, how, inside=inside)
    return made, sides, inside


def backward(
    grad_output: Value,
    query: Value,
    key: Value,
    value: Value,
    output: Value,
    sums: Value,
    how: Attention,
) -> tuple[Call, tuple[Value, ...], bool]:
    """The call for the gradients of query, key and value; otherwise as `forward`."""
    inside = memory_order(query) == _HEADS_INSIDE
    batch, length = (0, 2 if inside else 1), 1 if inside else 2
    dimensions: dict[str, _Dimensions] = {
        "bmm1_grad_gemm1": (2, length, (0, 1), batch),
        "bmm1_grad_gemm2": (3, length, (0, 1), batch),
        "bmm2_grad_gemm1": (2, length, (0, 1), batch),
        "bmm2_grad_gemm2": (3, 3, batch, batch),
    }
    sides = (query, key, value, sums, grad_output, output)
    gradients = [side.type for side in (query, key, value)]
    made = _call(BACKWARD, sides, gradients, [], dimensions, how, inside=inside)
    return made, sides, inside


def emit(b: Builder, call: Call, sides: Sequence[Value], *, inside: bool) -> tuple[Value, ...]:
    """Write a call over (batch, heads, length, size)."""
    return call.emit(b, [_turned(b, side) if inside else side for side in sides])


def _turned(b: Builder, x: Value) -> Value:
    return b.transpose(x, _HEADS_INSIDE) if x.rank == 4 else x


def _call(
    target: str,
    sides: Sequence[Value],
    like_sides: Sequence[TensorType],
    others: Sequence[TensorType],
    dimensions: Mapping[str, _Dimensions],
    how: Attention,
    *,
    inside: bool,
) -> Call:
    query, key = sides[:2]
    layout = (3, 1, 2, 0) if inside else (3, 2, 1, 0)
    workspace = TensorType((0,), dtypes.of("uint8"))
    row_major = [tuple(reversed(range(len(item.shape)))) for item in (*others, workspace)]
    return Call(
        target,
        tuple(_type(side, inside=inside) for side in sides),
        (*like_sides, *others, workspace),
        (*([layout] * len(like_sides)), *row_major),
        json.dumps(_config(query, key, dimensions, how)),
    )


def _type(side: Value, *, inside: bool) -> TensorType:
    if not inside or side.rank != 4:
        return side.type
    return TensorType(tuple(side.shape[dim] for dim in _HEADS_INSIDE), side.dtype)


def _config(
    query: Value, key: Value, dimensions: Mapping[str, _Dimensions], how: Attention
) -> dict[str, Any]:
    scores = (*query.shape[:3], key.shape[2])
    numbers = {
        f"{name}_dot_dimension_numbers": {
            "lhs_contracting_dimensions": [str(left)],
            "rhs_contracting_dimensions": [str(right)],
            "lhs_batch_dimensions": list(map(str, left_batch)),
            "rhs_batch_dimensions": list(map(str, right_batch)),
        }
        for name, (left, right, left_batch, right_batch) in dimensions.items()
    }
    attention = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": how.scale,
        "intermediate_tensor_shape": {
            "element_type": _ELEMENTS[query.dtype.name],
            "dimensions": list(map(str, scores)),
            "layout": {"minor_to_major": ["3", "2", "1", "0"]},
            "is_dynamic_dimension": [False] * 4,
        },
        "is_flash_attention": True,
        "mask_type": "CAUSAL" if how.is_causal else "NO_MASK",
        **numbers,
        "dropout_rate": 0.0,
        "max_seg_per_batch": 1,
    }
    return {"operation_queue_id": "0", "cudnn_fmha_backend_config": attention}
