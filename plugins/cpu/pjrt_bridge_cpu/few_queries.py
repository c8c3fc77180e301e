"""Attention of few queries, by a call (`aten/native/attend.c`).

A model that makes one token after the other has one query for all keys in its cache. XLA's CPU
compiler and PyTorch's kernel make products of matrices of it, and repeat keys that several heads
share. The call reads keys and values once, in their own element type.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value, memory_order
from pjrt_bridge.stablehlo.kernel_attributes import Attention
from pjrt_bridge.stablehlo.kernels import Kernels, convert
from pjrt_bridge_cpu.aten.library import can_call

TARGET = "pjrt_bridge.attend.1"
"""Name of the custom call. Its number changes with what it is given."""

MOST = 8
"""Queries up to which they are few."""

LEAST = 1 << 12
"""Products of numbers from which on it is worth a call."""

_FLOAT32 = dtypes.of("float32")
_DTYPES = ("float32", "bfloat16")
_POSITIONS_FIRST = (0, 2, 1, 3)
"""Of dimensions in memory, where each position has all heads."""


class FewQueries(Kernels):
    """Attention that reads each key and each value once.

    Attributes:
        can_attend_few: the client's plugin makes the custom call.
    """

    can_attend_few = False

    def attends(self, dtype: DType, batches: int, queries: int, keys: int, *, trains: bool) -> bool:
        """See `Kernels.attends`."""
        is_few = str(dtype) in _DTYPES and queries <= MOST and batches * queries * keys >= LEAST
        return self.can_attend_few and is_few and not trains

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
        takes = (
            self.can_attend_few
            and not how.is_causal
            and str(query.dtype) in _DTYPES
            and query.dtype == key.dtype == value.dtype
            and query.shape[2] <= MOST
            and min(*query.shape, *key.shape, value.shape[3]) > 0
            and query.size * key.shape[2] >= LEAST
            and (mask is None or mask.dtype.is_bool or mask.dtype.is_float)
        )
        if not takes:
            return super().attention(b, query, key, value, mask, how)
        keys, values = shared(b, key), shared(b, value)
        if keys.shape[1] != values.shape[1]:
            keys, values = key, value
        return attend(b, query, keys, values, _for_call(b, mask, key.shape[2]), how.scale)


def can_attend_few(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "ATTEND_FEW")


def attend(
    b: Builder, query: Value, key: Value, value: Value, mask: Value, scale: float
) -> tuple[Value, Value]:
    """The custom call.

    Args:
        b: the builder to emit into.
        query: (batches, heads, queries, size), float32 or bfloat16.
        key: (batches, key heads, keys, size); consecutive heads of the queries share one.
        value: (batches, key heads, keys, width).
        mask: float32 that is added to scores, (batches, heads, queries, keys), of which each but
            the last may be 1; without elements where nothing is.
        scale: of the scores.

    Returns:
        (batches, heads, queries, width), of the type of the query, and the logarithm of the sum of
        the exponentials of each query's scores, float32.
    """
    keys, keys_first = _as_in_memory(b, key)
    values, values_first = _as_in_memory(b, value)
    config: dict[str, Any] = {
        "how": np.array([keys_first, values_first], np.int64),
        "scale": np.array([scale], np.float32),
    }
    rows = query.shape[:3]
    results = [TensorType((*rows, value.shape[3]), query.dtype), TensorType(rows, _FLOAT32)]
    found = b.custom_call(TARGET, [query, keys, values, mask], results, backend_config=config)
    return found[0], found[1]


def shared(b: Builder, x: Value) -> Value:
    """Keys or values as they were before each head was repeated for those that share it.

    Args:
        b: the builder to emit into.
        x: (batches, heads, keys, size).

    Returns:
        The same, or with fewer heads.
    """
    given = None if x.origin is None or x.origin.permutation is not None else x.origin.value
    if given is None or given.repeats is None or given.rank != 5:
        return x
    heads, source = given.shape[1] * given.shape[2], given.repeats.value
    batches, own, _, count, size = given.shape
    is_repeated = (batches, heads, count, size) == x.shape and (
        given.repeats.dims == (0, 1, 3, 4)
        or (given.repeats.dims == (0, 1, 2, 3, 4) and source.shape[2] == 1)
    )
    if not is_repeated or source.size != batches * own * count * size:
        return x
    shape = (batches, own, count, size)
    return source if source.shape == shape else b.reshape(source, shape)


def _as_in_memory(b: Builder, x: Value) -> tuple[Value, bool]:
    """Keys or values in the order that they have in memory; whether positions are first."""
    if memory_order(x) != _POSITIONS_FIRST:
        return x, False
    return b.transpose(x, _POSITIONS_FIRST), True


def added(b: Builder, mask: Value) -> Value:
    """What is added to scores, of a mask that says which keys are seen, or that is added itself."""
    if not mask.dtype.is_bool:
        return mask
    zero, never = (b.full(mask.shape, item, _FLOAT32) for item in (0.0, -math.inf))
    return b.select(mask, zero, never)


def _for_call(b: Builder, mask: Value | None, count: int) -> Value:
    """A mask as `attend` takes it."""
    if mask is None:
        return b.full((0, 1, 1, count), 0, _FLOAT32)
    mask = convert(b, added(b, mask), _FLOAT32)
    shape = (1,) * (4 - mask.rank) + mask.shape
    mask = mask if mask.shape == shape else b.reshape(mask, shape)
    if shape[3] == count:
        return mask
    return b.broadcast_in_dim(mask, (*shape[:3], count), (0, 1, 2, 3))
