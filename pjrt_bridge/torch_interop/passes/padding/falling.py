"""Sizes that fall as a symbol grows, unless that symbol is equal to another.

The rows and columns of a square matrix are two symbols. In `x[:, len(x) // 2:]` the number of
columns falls as the rows grow; where there are as many rows as columns, it grows with both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.extents import Size, Symbol

_Positions = Mapping[Symbol, Sequence[tuple[int, int | None]]]


def equal_symbols(
    size: Size, symbols: Collection[Symbol], places: _Positions, arguments: Sequence[fx.Node]
) -> Iterator[tuple[Symbol, Symbol]]:
    """Pairs of symbols with which a size does not fall as the first grows, where they are equal.

    They are sizes of one argument that were equal in the call that the graph was traced for.
    Those of several arguments may have been equal by chance.

    Args:
        size: which falls as some symbols grow.
        symbols: that are padded.
        places: see `Paddable`.
        arguments: the placeholders of the graph.
    """
    for symbol in sorted(compat.falling_symbols(size) & set(symbols), key=str):
        for other in sorted(size.free_symbols & set(symbols) - {symbol}, key=str):
            if _are_of_a_square(symbol, other, places, arguments) and (
                other not in compat.falling_symbols(size.xreplace({symbol: other}))
            ):
                yield symbol, other
                break


def _are_of_a_square(
    one: Symbol, other: Symbol, places: _Positions, arguments: Sequence[fx.Node]
) -> bool:
    """Whether two symbols are sizes of an argument that were equal."""
    for position, dim in places.get(one, ()):
        for at, second in places.get(other, ()):
            if at == position < len(arguments) and dim is not None and second is not None:
                shape = compat.promise(arguments[at]).shape
                return bool(compat.hint(shape[dim]) == compat.hint(shape[second]))
    return False
