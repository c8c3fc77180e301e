"""Bounds on the data of nodes, for which eager raises and a device does not.

XLA clamps a position that is out of range, or drops what is written there; eager raises. An integer
division by zero, for which eager raises, has an undefined result. Where eager finds that extremes
are not finite, nothing would be counted between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.position_ranges import is_within

CHECK_INDICES = f"{compat.OWN_NAMESPACE}.check_indices.default"
CHECK_DIVISORS = f"{compat.OWN_NAMESPACE}.check_divisors.default"
CHECK_PROBABILITIES = f"{compat.OWN_NAMESPACE}.check_probabilities.default"
"""The operators that `data_checks.py` puts into graphs."""

_CHECKED = "pjrt_bridge_data_checked"
"""Key in the `meta` of nodes that need no check (any more)."""


def is_checked(node: fx.Node) -> bool:
    """Whether a node needs no check of its data: it has one, or must have none."""
    return _CHECKED in node.meta


def mark_checked(node: fx.Node) -> None:
    """Say so; parts of the graph have it, too."""
    node.meta[_CHECKED] = True


@dataclass(frozen=True)
class Bounds:
    """The valid range of the positions in a tensor.

    Attributes:
        index: the node that gives the tensor.
        low: the smallest position; a symbolic number where a size is one.
        high: the largest.
        first: of the first position alone.
    """

    index: fx.Node
    low: Any
    high: Any
    first: bool = False


_Rule = Callable[..., Iterator[tuple[Any, ...]]]
"""Takes a node's arguments; gives what `Bounds` has."""


def _along(source: Any, dim: int, index: Any, *_: Any, **__: Any) -> Iterator[Any]:
    shape = compat.promise(source).shape or (1,)
    yield index, 0, shape[dim] - 1


def _rows(weight: Any, index: Any, *_: Any, **__: Any) -> Iterator[Any]:
    yield index, 0, compat.promise(weight).shape[0] - 1


def _flat(source: Any, index: Any, *_: Any, **__: Any) -> Iterator[Any]:
    places = compat.promise(source).numel()
    yield index, -places, places - 1


def _written(source: Any, dim: int, index: Any, *_: Any, **__: Any) -> Iterator[Any]:
    shape = compat.promise(source).shape
    # Eager looks at no position of slices without elements.
    if len(shape) < 2 or not _is_empty(shape):
        yield from _along(source, dim, index)


def _advanced(source: Any, indices: Any, *_: Any, **__: Any) -> Iterator[Any]:
    shape = compat.promise(source).shape
    kept = [size for dim, size in enumerate(shape) if (*indices, *[None] * len(shape))[dim] is None]
    chosen = [compat.promise(index).shape for index in indices if index is not None]
    # Eager looks at no position where no element is read or written.
    if any(map(_is_empty, (kept, *chosen))):
        return
    for places, index in zip(shape, indices, strict=False):
        yield index, -places, places - 1


def _bags(weight: Any, index: Any, offsets: Any, *_: Any, **__: Any) -> Iterator[Any]:
    yield from _rows(weight, index)
    yield offsets, 0, compat.promise(index).numel()
    # The first bag begins with the first index.
    yield offsets, 0, 0, True


def _sorter(source: Any, *_: Any, sorter: Any = None, **__: Any) -> Iterator[Any]:
    yield sorter, 0, (compat.promise(source).shape or (1,))[-1] - 1


def _pivots(factors: Any, pivots: Any, *_: Any, **__: Any) -> Iterator[Any]:
    yield pivots, 1, compat.promise(factors).shape[-2]


def _among(index: Any, sizes: Any, ignored: int | None, _: str) -> Iterator[Any]:
    # Where a position is ignored, the reader that the others reach has the check.
    if ignored is None:
        found = [compat.promise(size) if isinstance(size, fx.Node) else size for size in sizes]
        yield index, 0, math.prod(found) - 1


def _is_empty(sizes: Iterable[Any]) -> bool:
    return any(not compat.is_symbolic(size) and size == 0 for size in sizes)


_RULES: dict[str, _Rule] = {
    "aten.index.Tensor": _advanced,
    "aten.index_put.default": _advanced,
    "aten.index_select.default": _along,
    "aten.index_add.default": _written,
    "aten.index_copy.default": _written,
    "aten.index_reduce.default": _along,
    "aten.gather.default": _along,
    "aten.scatter.src": _along,
    "aten.scatter.value": _along,
    "aten.scatter.reduce": _along,
    "aten.scatter.value_reduce": _along,
    "aten.scatter_add.default": _along,
    "aten.scatter_reduce.two": _along,
    "aten.take.default": _flat,
    "aten.put.default": _flat,
    "aten.embedding.default": _rows,
    "aten._embedding_bag.default": _bags,
    "aten._embedding_bag_forward_only.default": _bags,
    f"{compat.OWN_NAMESPACE}._embedding_bag.default": _rows,
    compat.POSITIONS: _among,
    "aten.searchsorted.Tensor": _sorter,
    "aten.lu_unpack.default": _pivots,
    "aten.linalg_lu_solve.default": _pivots,
}


def bounds(node: fx.Node, *, symbolic: bool = False) -> Iterator[Bounds]:
    """The bounds of each tensor of positions that a node takes and that may be out of range.

    Args:
        node: of a graph.
        symbolic: also of tensors of sizes that are not known, and bounds that depend on sizes.
    """
    rule = _RULES.get(str(compat.operator_name(node.target)))
    if rule is None:
        return
    for index, low, high, *first in rule(*node.args, **node.kwargs):
        promise = compat.promise(index) if isinstance(index, fx.Node) else None
        if (
            isinstance(promise, torch.Tensor)
            and promise.dtype in (torch.int64, torch.int32)
            and (symbolic or not (compat.is_symbolic(promise) or compat.is_symbolic(high)))
            and not _is_empty(promise.shape)
            and not is_within(index, low, high)
        ):
            yield Bounds(index, low, high, *first)


_DIVISIONS = frozenset(
    (
        "aten.div.Tensor_mode",
        "aten.floor_divide.default",
        "aten.fmod.Tensor",
        "aten.remainder.Tensor",
        "aten.remainder.Scalar_Tensor",
    )
)


def divisor(node: fx.Node) -> fx.Node | None:
    """The tensor of integers that a node divides integers by, if it does."""
    if str(compat.operator_name(node.target)) not in _DIVISIONS:
        return None
    given, by = compat.promise(node), node.args[1]
    promise = compat.promise(by) if isinstance(by, fx.Node) else None
    whole = all(
        isinstance(item, torch.Tensor) and not (item.is_floating_point() or item.is_complex())
        for item in (given, promise)
    )
    return by if whole and isinstance(by, fx.Node) else None


def uncertain_divisor(node: fx.Node) -> fx.Node | None:
    """The tensor of integers that a node divides integers by and that may have a zero."""
    by = divisor(node)
    if by is None or _is_empty(compat.promise(node).shape):
        return None
    if is_within(by, 1, math.inf) or is_within(by, -math.inf, -1):
        return None
    return by if _constant(by) is None else None


def probabilities(node: fx.Node) -> fx.Node | None:
    """The probabilities of a node that draws by them, which eager checks."""
    if compat.operator_name(node.target) != f"{compat.OWN_NAMESPACE}.multinomial.default":
        return None
    weights = node.args[1]
    return weights if isinstance(weights, fx.Node) else None


def _has_no_range(bins: Any = 100, *, range: Any = None, **_: Any) -> bool:
    return range is None


_HISTOGRAMS: dict[str, Callable[..., bool]] = {
    "aten.histc.default": lambda bins=100, min=0, max=0: min == max,
    "aten.histogram.bin_ct": _has_no_range,
    "aten._histogramdd_bin_edges.default": _has_no_range,
    "aten._histogramdd_from_bin_cts.default": _has_no_range,
}
"""Operators that count numbers, and whether they do so between the extremes of these."""


def counted(node: fx.Node) -> fx.Node | None:
    """The numbers that a node counts between their extremes, which eager wants to be finite."""
    between_extremes = _HISTOGRAMS.get(str(compat.operator_name(node.target)))
    if between_extremes is None or not between_extremes(*node.args[1:], **node.kwargs):
        return None
    numbers = node.args[0]
    return numbers if isinstance(numbers, fx.Node) else None


@dataclass(frozen=True)
class Hits:
    """Elements that a node writes where a mask is true.

    Attributes:
        mask: the node that gives it.
        times: how many elements of the result there are for each of the mask.
        values: how many there are to be written.
        exactly: PyTorch raises where it needs fewer, too.
    """

    mask: fx.Node
    times: int
    values: int
    exactly: bool


def hits(node: fx.Node) -> Hits | None:
    """What a node writes with a mask; None where it has one value for all, or writes otherwise."""
    name = str(compat.operator_name(node.target))
    if name == "aten.masked_scatter.default":
        given = compat.bound_arguments(node)
        mask, source = given["mask"], compat.promise(given["source"])
        places, wide = compat.promise(mask).numel(), compat.promise(node).numel()
        values = source.numel()
        if any(map(compat.is_symbolic, (places, wide, values))) or wide <= values:
            return None
        if _is_checked_value(mask):
            return None
        return Hits(mask, wide // places, values, exactly=False)
    if name not in ("aten.index_put.default", "aten._unsafe_index_put.default"):
        return None
    source, indices, values = (
        compat.bound_arguments(node)[k] for k in ("self", "indices", "values")
    )
    promises = [None if item is None else compat.promise(item) for item in indices]
    found = hits_of(compat.promise(source), promises, compat.promise(values))
    if found is None or _is_checked_value(indices[found[0]]):
        return None
    return Hits(indices[found[0]], 1, found[1], exactly=True)


def _is_checked_value(node: fx.Node) -> bool:
    return compat.operator_name(node.target) == compat.CHECKED


def hits_of(
    source: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor
) -> tuple[int, int] | None:
    """The place of a mask among indices, and how many values there are for its hits."""
    chosen = [(at, item) for at, item in enumerate(indices) if item is not None]
    if len(chosen) != 1 or chosen[0][1].dtype is not torch.bool:
        return None
    ((start, mask),) = chosen
    rest = source.dim() - start - mask.dim()
    shape = values.shape
    if len(shape) <= rest or compat.is_symbolic(count := shape[-rest - 1]) or count == 1:
        return None
    return start, count


_COPIES = ("aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.clone.default")


def wrong_constant(node: fx.Node) -> str | None:
    """Why PyTorch refuses constants of the graph that a node takes; None where it does not."""
    for found in bounds(node):
        values = _constant(found.index)
        if values is None:
            continue
        with compat.real_tensors():
            values = values[:1] if found.first else values
            smallest, largest = int(values.min()), int(values.max())
        if smallest < found.low or largest > found.high:
            wrong = out_of_range(smallest, largest, found.low, found.high)
            return f"an index is out of range: {wrong}"
    by = divisor(node)
    if by is not None and _has_zero(by):
        return "an integer is divided by zero"
    return None


def _constant(node: fx.Node) -> torch.Tensor | None:
    """The constant of the graph that a node is, or copies."""
    while compat.operator_name(node.target) in _COPIES and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    values = compat.promise(node) if node.op == "get_attr" else None
    known = isinstance(values, torch.Tensor) and not isinstance(values, compat.FakeTensor)
    return values if known else None


def _has_zero(node: fx.Node) -> bool:
    """Whether a tensor of integers is known to have a zero."""
    if compat.operator_name(node.target) in ("aten.full.default", "aten.full_like.default"):
        return type(node.args[1]) in (bool, int) and not node.args[1]
    values = _constant(node)
    if values is None:
        return False
    with compat.real_tensors():
        return not values.all()


def out_of_range(smallest: int, largest: int, low: int, high: int) -> str:
    """The text about positions out of range."""
    return f"found indices from {smallest} to {largest}, expected {low} to {high}"
