"""The exponential of matrices.

ATen semantics kept: the exponential of an empty matrix is empty. Half precision is computed in
float32 and rounded once; ATen's intermediate values may overflow there although the result is
finite.

The Taylor polynomial of `a / 2^s`, whose norm is at most 1, is squared s times. Each matrix of a
batch has its own s. Degree 12 (float32) or 20 (float64) leaves less than the rounding; products are
saved by the powers up to the fourth (Paterson and Stockmeyer, 1973).
"""

from __future__ import annotations

import math

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT32, Context
from pjrt_bridge.torch_interop.lowering.linalg import matrices as la
from pjrt_bridge.torch_interop.lowering.registry import lowering

_MOST = 1100
"""Halvings after which every finite float64 is at most 1."""


@lowering("aten.linalg_matrix_exp.default")
def matrix_exp(c: Context, a: Value) -> Value:
    """`sum(a^k / k!)`."""
    if 0 in a.shape:
        return c.zeros(0)
    b = c.b
    matrices = la.batched(c, c.widen(a))
    halvings = _halvings(c, matrices)
    factor = b.power(
        c.full(halvings.shape, 2, la.real_type(matrices.dtype)),
        b.negate(c.cast(halvings, la.real_type(matrices.dtype))),
    )
    result = _taylor(c, la.scaled(c, matrices, c.reshape(factor, (factor.size, 1, 1))))

    def squared(i: Value, x: Value) -> tuple[Value, ...]:
        more = la.compare_to(c, halvings, "GT", i)
        return (la.where(c, c.reshape(more, (x.shape[0], 1, 1)), la.product(c, x, x), x),)

    (result,) = la.repeat(c, b.reduce_max(halvings, (0,)), (result,), squared)
    return c.result(c.reshape(result, a.shape))


def _halvings(c: Context, a: Value) -> Value:
    """How often each matrix is halved until its largest column sum is at most 1; (batch,)."""
    b = c.b
    norm = b.reduce_max(b.reduce_sum(b.abs(a), (1,)), (1,))
    one = c.full(norm.shape, 1, norm.dtype)
    norm = b.select(b.is_finite(norm), b.maximum(norm, one), one)
    count = b.ceil(b.divide(b.log(norm), c.full(norm.shape, math.log(2), norm.dtype)))
    return b.minimum(c.cast(count, INT32), c.full(norm.shape, _MOST, INT32))


def _taylor(c: Context, a: Value) -> Value:
    b = c.b
    degree = 20 if la.real_type(a.dtype).bits == 64 else 12
    powers = [la.identity(c, a.shape, a.dtype), a, la.product(c, a, a)]
    powers += [la.product(c, powers[2], a), la.product(c, powers[2], powers[2])]

    def term(k: int, power: int) -> Value:
        return b.multiply(c.full(a.shape, 1 / math.factorial(k), a.dtype), powers[power])

    total = term(degree, 0)
    for first in range(degree - 4, -1, -4):
        total = la.product(c, total, powers[4]) if first < degree - 4 else term(degree, 4)
        for power in (3, 2, 1, 0):
            total = b.add(total, term(first + power, power))
    return total
