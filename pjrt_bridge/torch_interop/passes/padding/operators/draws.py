"""Random numbers with padded dimensions: the same that a call gets without padding.

The operators are those of `torch_interop/randomness`. A number is a function of a key and of its
element's position, row-major, and padding inside of a tensor moves positions. So numbers are drawn
for as many positions as there are, and taken from where an element is in the call: forward and
backward graphs that are padded to other sizes, or not at all, draw the same.
"""

from __future__ import annotations

from math import inf
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.nodes import label_with_line
from pjrt_bridge.torch_interop.passes.data_bounds import CHECK_PROBABILITIES
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
    result = use.results[0]
    if _positions_stay(use, found, result):
        return found
    base = (compat.operator_name(use.node.target) or "").removeprefix(f"{compat.OWN_NAMESPACE}.")
    if not {base, base.rpartition(".")[0]} & {*_OF_A_SHAPE, *_OF_A_TENSORS_SHAPE}:
        raise MixesRows("it draws a number for each element, whose position depends on the size")

    def emit(e: Emission) -> Any:
        if "size" in use.arguments:
            return _taken(e, use, found, lambda shape: e.repeat(use.node, size=shape), result)
        (given,) = others
        name = next(name for name, value in use.arguments.items() if value is given)
        dtype = compat.promise(given).dtype

        def draw(shape: list[Any]) -> fx.Node:
            return e.repeat(use.node, **{name: e.call("aten.full.default", shape, 0, dtype=dtype)})

        return _taken(e, use, found, draw, result)

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


def chosen(use: Use) -> PaddedDims:
    """Positions drawn by weights: padded positions have weight 0, padded rows any weights."""
    weights, last = use["self"], use.rank("self") - 1
    dims = use.dims(weights)
    if use.rank("key") > 0:
        raise MixesRows("it draws with a key for each row")
    for extent in dims.values():
        use.needs_prefix(extent)
    rows = {dim: extent for dim, extent in dims.items() if dim != last}
    # One for each sample, not for each weight.
    for_samples = use["replacement"] and use.number(use["num_samples"]) != 1
    found = use.promised(use.result)
    if last in found and not for_samples:
        raise MixesRows("it uses the size as a number")
    moves = not _positions_stay(use, found, use.result if for_samples else compat.promise(weights))
    if for_samples and moves:
        raise MixesRows("it draws a number for each sample, whose position depends on the size")

    def emit(e: Emission) -> Any:
        dtype, rank, filled = compat.promise(weights).dtype, last + 1, e[weights]
        if last in dims:
            filled = e.filled(filled, {last: dims[last]}, rank, 0, dtype)
        if rows:
            filled = e.filled(filled, rows, rank, 1, dtype)
        # The padded operator counts as checked.
        _check_probabilities(e, use.node, filled)
        if moves:
            return _first_to_arrive(e, use, filled)
        e.change(weights, filled)
        return e.copy(use.node)

    use.emit = emit
    return found


def _first_to_arrive(e: Emission, use: Use, weights: fx.Node) -> fx.Node:
    """What the lowering computes, with the times that a call without padding gets."""
    promise, last = compat.promise(use["self"]), use.rank("self") - 1
    wide = compute_type(promise.dtype)

    def draw(shape: list[Any]) -> fx.Node:
        like = e.call("aten.full.default", shape, 0, dtype=wide)
        return e.call(f"{compat.OWN_NAMESPACE}.exponential.default", e[use["key"]], like)

    times = _taken(e, use, use.dims("self"), draw, promise)
    made = e.call("aten._to_copy.default", weights, dtype=wide)
    made = e.call("aten.div.Tensor", made, times)
    if use["num_samples"] == 1:
        return e.call("aten.argmax.default", made, last, True)
    order = e.item(e.call("aten.sort.stable", made, stable=True, dim=last, descending=True), 1)
    return e.call("aten.slice.Tensor", order, last, 0, e.mapped(use["num_samples"]))


def _check_probabilities(e: Emission, node: fx.Node, weights: fx.Node) -> None:
    """As `data_checks` checks those of the operator."""
    # Both comparisons are False for NaN.
    positive = e.call("aten.ge.Scalar", weights, 0)
    proper = e.call("aten.logical_and.default", positive, e.call("aten.lt.Scalar", weights, inf))
    possible = e.call("aten.gt.Scalar", e.call("aten.sum.dim_IntList", weights, [-1]), 0)
    found = [e.call("aten.all.default", item) for item in (proper, possible)]
    e.call(CHECK_PROBABILITIES, *found, label_with_line(node))


def dropped_out(use: Use) -> PaddedDims:
    """Dropout: elements that are kept, and which these are."""
    _refuse_numbers(use)
    found = use.dims("input")
    if use["train"] is False or _positions_stay(use, found, use.results[0]):
        return found
    use.emit = lambda e: _dropped_out(e, use, found)
    return found


def _dropped_out(e: Emission, use: Use, dims: PaddedDims) -> list[Any]:
    kept_chance = 1 - use["p"]

    def draw(shape: list[Any]) -> fx.Node:
        like = e.call("aten.full.default", shape, False, dtype=torch.bool)
        return e.call(f"{compat.OWN_NAMESPACE}.bernoulli.p", e[use["key"]], like, kept_chance)

    kept = _taken(e, use, dims, draw, use.results[0])
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


def _factors(use: Use, dims: PaddedDims, drawn: torch.Tensor) -> list[Size]:
    """Of all dimensions, from the slowest to the fastest varying, without ones."""
    shape = use.shape(drawn)
    found = [factor for at, size in enumerate(shape) for factor in dims.get(at, (size,))]
    return [factor for factor in found if factor != 1]


def _positions_stay(use: Use, dims: PaddedDims, drawn: torch.Tensor) -> bool:
    """Whether all padding is behind the elements of the call."""
    return not any(map(use.is_padded, _factors(use, dims, drawn)[1:]))


def _taken(e: Emission, use: Use, dims: PaddedDims, draw: Any, drawn: torch.Tensor) -> fx.Node:
    """What is drawn for each element at its position in the call.

    Args:
        e: where to emit.
        use: of the operator.
        dims: the padded dimensions of what is drawn.
        draw: emits numbers of a shape, which is given as arguments of a node.
        drawn: the promise of what is drawn.
    """
    factors = _factors(use, dims, drawn)
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
    made = draw([e.size(product(factors)), *map(e.size, inner)])
    made = e.call("aten.index_select.default", made, 0, index)
    return e.call("aten.view.default", made, [e.size(size) for size in use.shape(drawn)])
