"""Attention and softmax as programs write them, and kernels that note what they were asked."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, Program, TensorType, Value
from pjrt_bridge.stablehlo.kernel_attributes import Attention
from pjrt_bridge.stablehlo.kernels import Kernels

F32 = dtypes.of("float32")


class Fused(Kernels):
    """Kernels of attention and softmax in StableHLO, and what they were asked for.

    As those of vendors do, attention gives zeros and a logarithm of 0 for a query without keys.
    """

    def __init__(self) -> None:
        self.attentions: list[tuple[tuple[int, ...], ...]] = []
        self.softmaxes: list[tuple[tuple[int, ...], int]] = []

    def attention(
        self,
        b: Builder,
        query: Value,
        key: Value,
        value: Value,
        mask: Value | None,
        how: Attention,
    ) -> tuple[Value, Value] | None:
        self.attentions.append((query.shape, key.shape, () if mask is None else mask.shape))
        batch: dict[str, Any] = {"lhs_batch": (0, 1), "rhs_batch": (0, 1)}
        scores = b.dot_general(query, key, lhs_contract=(3,), rhs_contract=(3,), **batch)
        scores = b.multiply(scores, b.full(scores.shape, how.scale, F32))
        never = b.full(scores.shape, -math.inf, F32)
        if mask is not None:
            mask = b.broadcast_in_dim(mask, scores.shape, range(4))
            hidden = mask.dtype.is_bool
            scores = b.select(mask, scores, never) if hidden else b.add(scores, mask)
        largest = b.reduce_max(scores, (3,))
        infinite = b.compare(largest, b.full(largest.shape, -math.inf, F32), "EQ")
        largest = b.select(infinite, b.full(largest.shape, 0.0, F32), largest)
        powers = b.exp(b.subtract(scores, b.broadcast_in_dim(largest, scores.shape, range(3))))
        total = b.reduce_sum(powers, (3,))
        total = b.select(infinite, b.full(total.shape, 1.0, F32), total)
        summed = b.dot_general(powers, value, lhs_contract=(3,), rhs_contract=(2,), **batch)
        output = b.divide(summed, b.broadcast_in_dim(total, summed.shape, range(3)))
        return output, b.add(largest, b.log(total))

    def softmax(self, b: Builder, x: Value, dim: int) -> Value | None:
        self.softmaxes.append((x.shape, dim))
        rest = [at for at in range(x.rank) if at != dim]
        largest = b.broadcast_in_dim(b.reduce_max(x, (dim,)), x.shape, rest)
        powers = b.exp(b.subtract(x, largest))
        return b.divide(powers, b.broadcast_in_dim(b.reduce_sum(powers, (dim,)), x.shape, rest))


@dataclass(frozen=True)
class Written:
    """How attention of (batch, heads, length, size) is written.

    Attributes:
        sizes: batch, heads, queries, keys, size.
        places: where a parameter has each of (batch, heads, length, size).
        joined: batch and heads are one dimension where they are multiplied, as in PyTorch.
        scale: a number that scores are multiplied or divided by.
        divided: by which of both.
        mask: what is added (`add`), or where scores are kept or dropped.
        masked: the shape of the mask, as it broadcasts.
        hidden: what takes the place of scores.
        nothing: the largest elements are compared with -inf, as JAX writes it.
        guarded: rows of -inf are zeros, as scaled dot-product attention has them.
        late: the sum divides the second product, not the exponentials.
        turned: the exponentials are the right side of the second product, as JAX writes it.
        wrong: a near miss.
    """

    sizes: tuple[int, int, int, int, int] = (2, 3, 4, 5, 8)
    places: tuple[int, ...] = (0, 1, 2, 3)
    joined: bool = False
    scale: float | None = 0.5
    divided: bool = False
    mask: str = ""
    masked: tuple[int, ...] = (1, 1, 4, 5)
    hidden: float = -math.inf
    nothing: bool = False
    guarded: bool = False
    late: bool = False
    turned: bool = False
    wrong: str = ""

    @property
    def types(self) -> list[TensorType]:
        """Of query, key, value, and the mask."""
        batch, heads, queries, keys, size = self.sizes
        found = []
        for length in (queries, keys, keys):
            shape = (batch, heads, length, size)
            found.append(TensorType(tuple(shape[dim] for dim in self.places), F32))
        kind = F32 if self.mask == "add" else dtypes.of("bool")
        return [*found, TensorType(self.masked, kind)]

    def program(self) -> Program:
        """The program; a near miss may have more results."""
        b = Builder(self.types)
        return b.finish(_attention(b, self, *b.parameters))

    def arrays(self, seed: int) -> list[np.ndarray[Any, Any]]:
        """Arguments."""
        random = np.random.default_rng(seed)
        found: list[np.ndarray[Any, Any]] = [
            random.standard_normal(item.shape).astype(np.float32) for item in self.types[:3]
        ]
        hidden = random.random(self.masked) < 0.3
        added = np.where(hidden, -np.inf, random.standard_normal(self.masked)).astype(np.float32)
        return [*found, added if self.mask == "add" else hidden]


def _attention(
    b: Builder, how: Written, query: Value, key: Value, value: Value, mask: Value
) -> list[Value]:
    batch, heads, *_ = how.sizes
    back = [how.places.index(dim) for dim in range(4)]
    q, k, v = (b.transpose(x, back) if back != [0, 1, 2, 3] else x for x in (query, key, value))
    if how.joined:
        q, k, v = (b.reshape(x, (batch * heads, *x.shape[2:])) for x in (q, k, v))
    outer = tuple(range(q.rank - 2))
    both: dict[str, Any] = {"lhs_batch": outer, "rhs_batch": outer}
    last = q.rank - 1
    scores = b.dot_general(q, k, lhs_contract=(last,), rhs_contract=(last,), **both)
    if how.joined:
        scores = b.reshape(scores, (batch, heads, *scores.shape[1:]))
    if how.scale is not None:
        factor = b.full(scores.shape, how.scale, F32)
        if how.wrong == "scaled by values":
            factor = b.add(scores, factor)
        scores = (b.divide if how.divided else b.multiply)(scores, factor)
    if how.mask:
        shown = b.broadcast_in_dim(mask, scores.shape, range(4))
        never = b.full(scores.shape, how.hidden, F32)
        if how.mask == "add":
            scores = b.add(scores, shown)
        elif how.mask == "keep":
            scores = b.select(shown, scores, never)
        else:
            scores = b.select(shown, never, scores)
    if how.wrong == "added behind":
        scores = b.add(scores, b.iota(scores.shape, 3, F32))
    powers, total, weights = _softmax(b, how, scores)
    extra = {"weights used": weights, "powers used": powers, "scores used": scores}.get(how.wrong)
    first = powers if how.late else weights
    if how.joined:
        first = b.reshape(first, (batch * heads, *first.shape[2:]))
    over = last - 1 if how.wrong == "summed over queries" else last
    if how.turned:
        summed = b.dot_general(v, first, lhs_contract=(last - 1,), rhs_contract=(over,), **both)
        summed = b.transpose(summed, (*outer, last, last - 1))
    else:
        summed = b.dot_general(first, v, lhs_contract=(over,), rhs_contract=(last - 1,), **both)
    if how.joined:
        summed = b.reshape(summed, (batch, heads, *summed.shape[1:]))
    if how.late:
        dims = (0, 1, 3) if how.wrong == "total along columns" else (0, 1, 2)
        summed = b.divide(summed, b.broadcast_in_dim(total, summed.shape, dims))
    return [summed] if extra is None else [summed, extra]


def _softmax(b: Builder, how: Written, x: Value) -> tuple[Value, Value, Value]:
    """Exponentials, their sums by rows, and the softmax."""
    dim = 2 if how.wrong == "softmax over queries" else 3
    rows = tuple(at for at in range(4) if at != dim)
    of = b.abs(x) if how.wrong == "other maximum" else x
    reduce = b.reduce_min if how.wrong == "minimum" else b.reduce_max
    largest = reduce(of, (2 if how.wrong == "maximum over queries" else dim,))
    infinite = b.compare(largest, b.full(largest.shape, -math.inf, F32), "EQ")
    if how.nothing:
        largest = b.maximum(b.full(largest.shape, -math.inf, F32), largest)
    if how.guarded:
        zero = 1.0 if how.wrong == "guarded by one" else 0.0
        largest = b.select(infinite, b.full(largest.shape, zero, F32), largest)
    turned = {"maximum along keys": (0, 1, 3), "maximum over queries": (0, 1, 3)}
    shifted = b.subtract(x, b.broadcast_in_dim(largest, x.shape, turned.get(how.wrong, rows)))
    powers = b.exp(shifted)
    summed = b.exp(b.add(shifted, shifted)) if how.wrong == "other powers" else powers
    if how.wrong == "sum over all":
        over: tuple[int, ...] = (2, 3)
        total = b.broadcast_in_dim(b.reduce_sum(summed, over), largest.shape, (0, 1))
    else:
        total = b.reduce_sum(summed, (dim,))
    if how.guarded and how.wrong != "guarded once":
        total = b.select(infinite, b.full(total.shape, 1.0, F32), total)
    # As JAX and NumPy write it: with a dimension of one element that is kept.
    kept = tuple(1 if at == dim else size for at, size in enumerate(x.shape))
    whole = b.broadcast_in_dim(total, kept, rows)
    places = (0, 1, 2, 3)
    spread = b.broadcast_in_dim(whole, x.shape, places)
    if how.wrong == "total along keys":
        spread = b.broadcast_in_dim(total, x.shape, (0, 1, 3))
    return powers, total, b.divide(powers, spread)


SQUARE = Written(sizes=(2, 2, 4, 4, 4), masked=(1, 1, 4, 4))
"""Every dimension could be another one."""

NEAR_MISSES = [
    replace(SQUARE, wrong=wrong)
    for wrong in (
        *("scaled by values", "summed over queries"),
        *("softmax over queries", "other maximum", "minimum", "maximum along keys"),
        *("maximum over queries", "other powers", "sum over all", "total along keys"),
        *("weights used", "powers used", "scores used"),
    )
] + [
    replace(SQUARE, wrong="added behind", mask="keep", hidden=-1e9),
    replace(SQUARE, wrong="total along columns", late=True),
    replace(SQUARE, wrong="guarded once", guarded=True),
    replace(SQUARE, wrong="guarded by one", guarded=True),
    replace(SQUARE, mask="keep", hidden=-10.0),
    replace(SQUARE, mask="keep", hidden=math.inf),
    replace(SQUARE, scale=0.0),
    replace(SQUARE, sizes=(2, 2, 4, 1, 4), masked=(1, 1, 4, 1)),
]
