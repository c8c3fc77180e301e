"""Extents: the factors of a padded dimension's size, each with padding of its own behind it.

A size depends on symbols. Where some of these are padded, a dimension of that size is longer than
the call's. Views merge dimensions, and then the padding of the inner ones lies between what is to
be kept: a dimension of `s0 * s1` elements that was merged of two is no `s0 * s1` elements with all
padding behind them. So an extent has the factors in row-major order.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from pjrt_bridge.torch_interop import compat

Symbol = Any
"""A symbol of sympy."""
Size = Any
"""A number, or an expression of symbols."""
PythonNumber = bool | int | float
SymbolValues = Mapping[Symbol, int]
"""Values of symbols."""
Extent = tuple[Size, ...]
"""Factors from the slowest to the fastest varying; none is 1."""
PaddedDims = Mapping[int, Extent]
"""The padded dimensions of a tensor."""


class MixesRows(Exception):
    """An operator that padding would change; the text says what it does."""


class MergedOtherwise(MixesRows):
    """A padded dimension that was merged of others than an operator can take.

    Args:
        found: its extent.
        wanted: an extent of the same size that the operator takes.
        by_hint: whether a tensor that may be merged in any way should rather be merged so.
        equal: pairs of sizes whose equality makes both extents those of one size.
    """

    def __init__(
        self,
        found: Extent,
        wanted: Extent,
        *,
        by_hint: bool,
        equal: Sequence[tuple[Size, Size]] = (),
    ) -> None:
        super().__init__("it combines the dimension with one that is merged otherwise")
        self.found = found
        self.wanted = wanted
        self.by_hint = by_hint
        self.equal = equal


def is_symbol(size: Size) -> bool:
    """Whether a size is a symbol by itself, neither a number nor computed of symbols."""
    return bool(getattr(size, "is_Symbol", False))


def depends(size: Size, symbols: Container[Symbol]) -> bool:
    """Whether a size depends on one of these symbols."""
    return any(symbol in symbols for symbol in getattr(size, "free_symbols", ()))


def product(sizes: Iterable[Size]) -> Size:
    """The product of numbers and expressions."""
    return math.prod(sizes)


def extent_of(size: Size) -> Extent:
    """A size whose padding is all behind it."""
    return (size,)


def has_prefix(extent: Extent, symbols: Container[Symbol]) -> bool:
    """Whether all padding is behind what is kept: only the first factor is padded."""
    return not any(depends(factor, symbols) for factor in extent[1:])


def check_merged_alike(extents: Iterable[Extent]) -> None:
    """Check that among these all of one size are merged of the same factors.

    Raises:
        MergedOtherwise: they are not.
    """
    for one, other in combinations(dict.fromkeys(extents), 2):
        pairs = zip(one, other, strict=False)
        alike = len(one) == len(other) and all(compat.is_same_size(*pair) for pair in pairs)
        if not alike and compat.is_same_size(product(one), product(other)):
            raise MergedOtherwise(one, other, by_hint=True)


def regrouped(
    factors: Sequence[Extent],
    sizes: Sequence[Size],
    symbols: Container[Symbol],
    equal: list[tuple[Size, Size]],
) -> dict[int, Extent]:
    """The padded dimensions of a tensor in row-major order with other sizes.

    Args:
        factors: of each dimension before.
        sizes: of the dimensions after.
        symbols: that are padded.
        equal: gets pairs of sizes that are equal if the view is possible.

    Raises:
        MergedOtherwise: a padded factor is divided into factors whose padding would be elsewhere.
        MixesRows: it is divided otherwise, or it cannot be seen that it is not.
    """
    rest = list(_merged((item for extent in factors for item in extent), symbols))
    found = {}
    for dim, size in enumerate(sizes):
        taken: list[Size] = []
        left = size
        while left != 1:
            if not rest:
                raise MixesRows("it divides the dimension in a way that is not known")
            first = rest[0]
            after = compat.quotient(left, first)
            if after is not None:
                rest.pop(0)
                taken.append(first)
                left = after
                continue
            inner = _inner(first, left, sizes)
            if inner is None:
                raise MixesRows("it divides the dimension")
            pairs = [] if left * inner == first else [(left * inner, first)]
            if depends(first, symbols) and depends(inner, symbols):
                whole = next(extent for extent in factors if first in extent)
                at = whole.index(first)
                parts = (*whole[:at], left, inner, *whole[at + 1 :])
                raise MergedOtherwise(whole, parts, by_hint=True, equal=pairs)
            equal += pairs
            rest[0] = inner
            taken.append(left)
            left = 1
        if any(depends(item, symbols) for item in taken):
            found[dim] = tuple(_merged(taken, symbols))
    if any(item != 1 for item in rest):
        raise MixesRows("it drops a part of the dimension")
    return found


def _inner(whole: Size, outer: Size, sizes: Sequence[Size]) -> Size | None:
    """What a size is divided into besides an outer factor, if that is possible in all calls.

    Torch has a size that is known to be divided by a number as a quotient rounded down.
    """
    found = compat.quotient(whole, outer)
    if found is None and compat.is_number(outer):
        found = compat.floor_quotient(whole, outer)
        found = found if found in sizes else None
    if found is None:
        numbers = (size for size in sizes if compat.is_number(size) and size > 1)
        halves = (size for size in numbers if compat.floor_quotient(whole, size) == outer)
        found = next(halves, None)
    return found


def _merged(factors: Iterable[Size], symbols: Container[Symbol]) -> list[Size]:
    """Factors without ones; neighbours that are not padded as one."""
    made: list[Size] = []
    for factor in factors:
        if factor == 1:
            continue
        if made and not depends(made[-1], symbols) and not depends(factor, symbols):
            made[-1] = made[-1] * factor
        else:
            made.append(factor)
    return made
