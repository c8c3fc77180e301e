"""Random numbers with padded dimensions: the same that a call gets without padding.

The operators are those of `torch_interop/randomness`. A number is a function of a key and of its
element's position, row-major, and padding inside of a tensor moves positions. So numbers are drawn
for as many positions as there are, and taken from where an element is in the call: forward and
backward graphs that are padded to other sizes, or not at all, draw the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import MixesRows, PaddedDims, Size, product
from pjrt_bridge.torch_interop.passes.padding.formulas import compute_type
from pjrt_bridge.torch_interop.passes.padding.rows import Use

_OF_A_SHAPE = ("rand", "randn", "randint", "normal.float_float")
_OF_A_TENSORS_SHAPE = (
    *("rand_like", "randn_like", "randint_like", "bernoulli.p", "uniform", "normal_functional"),
    *("log_normal", "exponential", "geometric", "cauchy"),
)
_READING = ("bernoulli.Tensor", "normal", "rrelu_with_noise_functional")
"""Operators that read the elements of a tensor, too."""

DRAWING = tuple(
    f"{compat.OWN_NAMESPACE}.{name}" for name in (*_OF_A_SHAPE, *_OF_A_TENSORS_SHAPE, *_READING)
)


def drawn(use: Use) -> PaddedDims:
    """Numbers of one operator."""
    _refuse_numbers(use)
    others = [node for node in use.tensors if node is not use["key"]]
    found = use.aligned(others) if others else use.promised(use.result)
    if _positions_stay(use, found):
        return found
    base = (compat.operator_name(use.node.target) or "").removeprefix(f"{compat.OWN_NAMESPACE}.")
    if not {base, base.rpartition(".")[0]} & {*_OF_A_SHAPE, *_OF_A_TENSORS_SHAPE}:
        raise MixesRows("it draws a number for each element, whose position depends on the size")

    def emit(e: Emission) -> Any:
        if "size" in use.arguments:
            return _taken(e, use, found, lambda shape: e.repeat(use.node, size=shape))
        (given,) = others
        name = next(name for name, value in use.arguments.items() if value is given)
        dtype = compat.promise(given).dtype

        def draw(shape: list[Any]) -> fx.Node:
            return e.repeat(use.node, **{name: e.call("aten.full.default", shape, 0, dtype=dtype)})

        return _taken(e, use, found, draw)

    use.emit = emit
    return found


def permutation(use: Use) -> PaddedDims:
    """A permutation: positions of the call in the order that more of them are drawn in."""
    found, size = use.promised(use.result), use.number(use["n"])
    if use.rank("key") > 0:
        raise MixesRows("it draws a permutation for each key")

    def emit(e: Emission) -> Any:
        drawn = e.repeat(use.node, n=e.size(size))
        behind = e.call("aten.ge.Tensor", drawn, e.actual(size))
        order = e.item(e.call("aten.sort.stable", behind, stable=True, dim=0), 1)
        return e.call("aten.index_select.default", drawn, 0, order)

    use.emit = emit
    return found


def dropped_out(use: Use) -> PaddedDims:
    """Dropout: elements that are kept, and which these are."""
    _refuse_numbers(use)
    found = use.dims("input")
    if use["train"] is False or _positions_stay(use, found):
        return found
    use.emit = lambda e: _dropped_out(e, use, found)
    return found


def _dropped_out(e: Emission, use: Use, dims: PaddedDims) -> list[Any]:
    kept_chance = 1 - use["p"]

    def draw(shape: list[Any]) -> fx.Node:
        like = e.call("aten.full.default", shape, False, dtype=torch.bool)
        return e.call(f"{compat.OWN_NAMESPACE}.bernoulli.p", e[use["key"]], like, kept_chance)

    kept = _taken(e, use, dims, draw)
    dtype = compat.promise(use["input"]).dtype
    wide = compute_type(dtype)
    made = e.call("aten._to_copy.default", e[use["input"]], dtype=wide)
    # A product, in which NaN stays NaN as in ATen.
    made = e.call("aten.mul.Tensor", made, e.call("aten._to_copy.default", kept, dtype=wide))
    made = e.call("aten.mul.Tensor", made, 1 / kept_chance if kept_chance else 0.0)
    return [e.call("aten._to_copy.default", made, dtype=dtype), kept]


def _refuse_numbers(use: Use) -> None:
    for name, value in use.arguments.items():
        is_tensor = isinstance(value, fx.Node) and value in use.tensors
        if name == "size" or is_tensor or isinstance(value, (list, tuple)):
            continue
        if use.is_padded(use.number(value)):
            raise MixesRows("it uses the size as a number")


def _factors(use: Use, dims: PaddedDims) -> list[Size]:
    """Of all dimensions, from the slowest to the fastest varying, without ones."""
    shape = use.shape(use.results[0])
    found = [factor for at, size in enumerate(shape) for factor in dims.get(at, (size,))]
    return [factor for factor in found if factor != 1]


def _positions_stay(use: Use, dims: PaddedDims) -> bool:
    """Whether all padding is behind the elements of the call."""
    return not any(map(use.is_padded, _factors(use, dims)[1:]))


def _taken(e: Emission, use: Use, dims: PaddedDims, draw: Any) -> fx.Node:
    """What is drawn for each element at its position in the call.

    Args:
        e: where to emit.
        use: of the operator.
        dims: the padded dimensions of its results.
        draw: emits numbers of a shape, which is given as arguments of a node.
    """
    factors = _factors(use, dims)
    inner: list[Size] = []
    # What varies faster than all padding is moved as a whole.
    while not use.is_padded(factors[-1]):
        inner.insert(0, factors.pop())
    index, before = None, []
    for factor in factors:
        own = e.call("aten.arange.default", e.size(factor), dtype=torch.int64)
        before.append(factor)
        if index is None:
            index = own
            continue
        index = e.call("aten.mul.Tensor", index, e.actual(factor))
        index = e.call("aten.add.Tensor", e.call("aten.unsqueeze.default", index, 1), own)
        index = e.call("aten.view.default", index, [e.size(product(before))])
    drawn = draw([e.size(product(factors)), *map(e.size, inner)])
    made = e.call("aten.index_select.default", drawn, 0, index)
    return e.call("aten.view.default", made, [e.size(size) for size in use.shape(use.results[0])])
