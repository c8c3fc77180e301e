"""Random permutations, categories by their weights, and the operators that are left to PyTorch.

ATen semantics kept: a category of weight 0 is not drawn. Weights that are negative, not finite, or
all 0 are errors in eager, and undefined here.
"""

from __future__ import annotations

from typing import NoReturn

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT64, Context
from pjrt_bridge.torch_interop.lowering.math.ordering import UINT64, sorted_along
from pjrt_bridge.torch_interop.lowering.math.scan import scan
from pjrt_bridge.torch_interop.lowering.random.distributions import standard_exponential, unit
from pjrt_bridge.torch_interop.lowering.random.threefry import words
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering
from pjrt_bridge.torch_interop.lowering.shaping.shape import part


@lowering("pjrt_bridge.randperm.default")
def randperm(c: Context, key: Value, n: int, **kwargs: object) -> Value:
    """The integers below `n` in the order of random 64-bit numbers.

    Two of these are equal with a probability below n**2 / 2**65.
    """
    if n == 0:
        return c.zeros(0)
    b = c.b
    high, low = (b.convert(word, UINT64) for word in words(b, key, (n,)))
    number = b.or_(b.shift_left(high, b.full((n,), 32, UINT64)), low)
    return c.result(sorted_along(c, number, 0)[1])


@lowering("pjrt_bridge.multinomial.default")
def multinomial(
    c: Context, key: Value, weights: Value, num_samples: int, replacement: bool = False
) -> Value:
    """Positions in the last dimension, drawn in proportion to the weights there."""
    if replacement and num_samples > 1:
        return _with_replacement(c, key, c.widen(weights))
    b, last = c.b, weights.rank - 1
    wide = c.widen(weights)
    # The first of exponential arrival times is distributed like the rates, and so are the next
    # ones.
    arrived = b.divide(wide, standard_exponential(c, key, wide.shape, wide.dtype))
    if num_samples == 1:
        counter = b.iota(wide.shape, last, INT64)
        first = c.spread(b.reduce_max(arrived, (last,)), wide.shape, (last,))
        end = c.full(wide.shape, max(wide.shape[last] - 1, 0), INT64)
        at = b.select(b.compare(arrived, first, "EQ"), counter, end)
        return c.reshape(b.reduce_min(at, (last,)), c.output.shape)
    _, order = sorted_along(c, arrived, last, descending=True)
    return c.result(part(c, order, last, 0, num_samples))


def _with_replacement(c: Context, key: Value, weights: Value) -> Value:
    """The first category whose running sum of weights exceeds a uniform part of the total."""
    b, last, shape = c.b, weights.rank - 1, c.output.shape
    sums = scan(c, weights, last, 0, b.add)
    total = part(c, sums, last, weights.shape[last] - 1, weights.shape[last])
    reached = b.multiply(unit(c, key, shape, weights.dtype), c.broadcast(total, shape))
    grid = (*shape, weights.shape[last])
    line, each = last, last + 1
    possible = b.compare(weights, b.full(weights.shape, 0, weights.dtype), "GT")
    counter = b.iota(weights.shape, last, INT64)
    final = b.reduce_max(b.select(possible, counter, c.full(counter.shape, 0, INT64)), (last,))
    # Sums that are rounded in different orders need not increase: weights of 0 are left out.
    beyond = b.and_(
        b.compare(c.spread(sums, grid, (line,)), c.spread(reached, grid, (each,)), "GT"),
        c.spread(possible, grid, (line,)),
    )
    at = b.select(beyond, b.iota(grid, each, INT64), c.spread(final, grid, (line, each)))
    return b.reduce_min(at, (each,))


_REASONS = {
    "how many random numbers a sample takes depends on these numbers": (
        "aten._sample_dirichlet.default",
        "aten._standard_gamma.default",
        "aten.binomial.default",
        "aten.poisson.default",
    ),
    "its limit is a tensor": ("aten.randint_like.Tensor",),
}


def _left_to_pytorch(reason: str, *names: str) -> None:
    @lowering(*names)
    def _lower(c: Context, *args: object, **kwargs: object) -> NoReturn:
        raise NotLowerable(f"{reason}: PyTorch draws")


for _reason, _names in _REASONS.items():
    _left_to_pytorch(_reason, *_names)
