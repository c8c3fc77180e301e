"""The sizes that padding a call needs, calculated from the values of a graph's symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.extents import Size, Symbol
from pjrt_bridge.torch_interop.passes.padding.paddable import Paddable


class SizeExpressions:
    """All expressions of sizes that calls need, evaluated at once.

    Attributes:
        following: positions of symbols that follow from others.
        bad: padded sizes that turned out not to fit.
    """

    def __init__(self, found: Paddable, symbols: Sequence[Symbol]) -> None:
        self.found = found
        self._padded = list(dict.fromkeys(found.padded_sizes()))
        self._sizes = list(dict.fromkeys(found.sizes()))
        self._evaluate = compat.compiled_numbers(self._sizes, symbols)
        self.following = [at for at, symbol in enumerate(symbols) if symbol in found.following]
        self._follow = compat.compiled_numbers(
            [found.following.get(symbol, symbol) for symbol in symbols], symbols
        )
        self.bad: set[tuple[int, ...]] = set()

    def of(self, values: Sequence[int]) -> dict[Size, int]:
        """The values of all expressions."""
        return dict(zip(self._sizes, self._evaluate(values), strict=True))

    def settled(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """Values of symbols, in the place of those that follow from others what they then are."""
        return tuple(self._follow(values)) if self.following else values

    def are_equal(self, values: Sequence[int]) -> bool:
        """Whether sizes are equal that have to be, for these values of symbols."""
        numbers = self.of(values)
        return all(numbers[one] == numbers[other] for one, other in self.found.equal)

    def fit(
        self, actual: Mapping[Size, int], padded: Mapping[Size, int], arguments: Sequence[Any]
    ) -> bool:
        """Whether a call can be padded: its sizes are what the analysis took them for."""
        found = self.found
        return (
            all(
                actual[one] == actual[other] and padded[one] == padded[other]
                for one, other in found.equal
            )
            and all(actual[size] > 0 for size in found.positive)
            and all(0 <= actual[size] <= padded[size] for size in self._padded)
            and all(
                layout.shape(arguments[at].shape, actual.__getitem__) == tuple(arguments[at].shape)
                for at, layout in found.arguments.items()
            )
            and all(arguments[at] == actual[number] for at, number in found.numbers.items())
        )
