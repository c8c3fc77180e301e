"""The padded form of a symbolic graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from pjrt_bridge.torch_interop.passes.padding.extents import PaddedDims, Size, Symbol
from pjrt_bridge.torch_interop.passes.padding.layouts import SymbolicLayout

PROMISED = "padded_sizes"
"""Key of a node's meta: sizes of its results, which have to come out for padded sizes too."""


@dataclass(frozen=True)
class Paddable:
    """A graph whose sizes can be padded.

    Attributes:
        module: the padded graph; what it reads behind the arguments is `given`.
        checks: of sizes, which the padded graph does not have.
        symbols: that are padded.
        places: of symbols: positions of arguments, and dimensions, or None where the argument is
            the number.
        arguments: for positions of tensors how they are padded.
        written: positions of padded tensors that the graph writes into.
        numbers: for positions of numbers that depend on padded symbols, their expressions.
        given: see `Emission.given`.
        results: for indices of results that have padded sizes: their layout, the position of an
            argument that is returned, or the expression of a number.
        equal: pairs of sizes that have to be equal, in calls that are padded.
        following: symbols that follow from others in these calls, and from what.
        growing: sizes that have to be no smaller in the padded form than in the call.
        positive: sizes that have to be more than 0.
        may_raise: `OutOfCall`, where PyTorch runs it.
        refusals: for symbols that are sizes and not padded, why.
        extents: the padded dimensions of nodes, by name.
    """

    module: fx.GraphModule
    checks: tuple[fx.Node, ...]
    symbols: tuple[Symbol, ...]
    places: Mapping[Symbol, Sequence[tuple[int, int | None]]]
    arguments: Mapping[int, SymbolicLayout]
    written: Sequence[int]
    numbers: Mapping[int, Size]
    given: Sequence[tuple[Size, torch.dtype | None]]
    results: Mapping[int, SymbolicLayout | Size | int]
    equal: Sequence[tuple[Size, Size]]
    following: Mapping[Symbol, Size]
    growing: Sequence[Size]
    positive: Sequence[Size]
    may_raise: bool
    refusals: Mapping[Symbol, str]
    extents: Mapping[str, PaddedDims]

    def padded_sizes(self) -> Iterator[Size]:
        """The sizes that are calculated for a call as for its padded form, which has none less."""
        for layout in (*self.arguments.values(), *self._layouts()):
            for extent in layout.dims.values():
                yield from extent
        yield from (size for size, dtype in self.given if dtype is None)
        yield from self.growing

    def sizes(self) -> Iterator[Size]:
        """All sizes that are calculated, before a call runs, of the values of symbols."""
        yield from self.padded_sizes()
        yield from self.numbers.values()
        yield from (size for size, _ in self.given)
        yield from (size for pair in self.equal for size in pair)
        yield from self.positive
        for layout in self._layouts():
            yield from layout.promised or ()
        for item in self.results.values():
            if not isinstance(item, (SymbolicLayout, int)):
                yield item

    def _layouts(self) -> list[SymbolicLayout]:
        return [item for item in self.results.values() if isinstance(item, SymbolicLayout)]
