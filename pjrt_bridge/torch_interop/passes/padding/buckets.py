"""Padding: sizes of calls are padded, so that one compilation serves many.

Arguments are padded with zeros and results are cropped, for the sizes that `analysis` finds; other
sizes stay those of the call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import fx

from pjrt_bridge.mixed.execution import CallRecord
from pjrt_bridge.mixed.padded_sizes import PaddedSizes
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.functionalize_rng import Refused
from pjrt_bridge.torch_interop.passes.padding.analysis import find
from pjrt_bridge.torch_interop.passes.padding.extents import (
    PaddedDims,
    Size,
    Symbol,
    SymbolValues,
    depends,
)
from pjrt_bridge.torch_interop.passes.padding.layouts import SymbolicLayout
from pjrt_bridge.torch_interop.passes.padding.memory import HOST, PaddingMemory
from pjrt_bridge.torch_interop.passes.padding.paddable import PROMISED
from pjrt_bridge.torch_interop.passes.padding.sizes_of_calls import SizeExpressions
from pjrt_bridge.torch_interop.passes.padding.work import compiling, estimate

AUTOMATIC: Literal["auto"] = "auto"


class CannotPad(Exception):
    """A call cannot be padded to the sizes that were chosen, which is found when it is compiled."""


class GraphPadding:
    """Pads the calls of a symbolic graph.

    Args:
        module: the graph.
        buckets: sizes to pad to, increasing; or `"auto"`: sizes that come decide.
        hints: see `find`.
        memory: where its arguments are.
        checks_positions: see `Walk`.
        changing: see `PaddedSizes`.
        following: see `find`.
        refused: see `find`.

    Attributes:
        module: the padded graph.
        positions: of the arguments that are padded.
        extents: the padded dimensions of nodes, by name.
        following: see `Paddable`.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        buckets: Sequence[int] | Literal["auto"],
        hints: Mapping[str, PaddedDims] | None = None,
        memory: PaddingMemory = HOST,
        *,
        checks_positions: bool = False,
        changing: bool = False,
        following: Mapping[Symbol, Size] | None = None,
        refused: Refused = lambda *_: False,
    ) -> None:
        self._found = found = find(
            module,
            hints,
            memory,
            checks_positions=checks_positions,
            following=following,
            refused=refused,
        )
        self._memory = memory
        self.module = found.module
        self.positions = frozenset(found.arguments)
        self.extents = found.extents
        self.following = found.following
        self._buckets = buckets
        self._last: SymbolValues = {}
        self._symbols = tuple(found.places)
        # A symbol that follows from padded ones is padded, too.
        self._padded = [
            at
            for at, symbol in enumerate(self._symbols)
            if symbol in found.symbols or depends(found.following.get(symbol), found.symbols)
        ]
        self._policy: PaddedSizes | None = None
        self._numbers = SizeExpressions(found, self._symbols)
        if buckets == AUTOMATIC and self._padded:
            work = estimate(module.graph, self._symbols, self.positions)
            cost = compiling(module.graph)
            self._policy = PaddedSizes(
                work,
                self._padded,
                self._numbers.are_equal,
                cost,
                changing=changing,
                following=self._numbers.following,
                settle=self._numbers.settled,
            )

    def __bool__(self) -> bool:
        return bool(self._found.symbols)

    def pad(self, arguments: list[Any], has_own: Callable[[], bool] | None = None) -> Padded | None:
        """Pad the arguments of a call, and empty the list.

        Args:
            arguments: of the call.
            has_own: whether a program of just these sizes is there; asked where they come often.

        Returns:
            None, and the list as it is, where the call is not padded.

        Raises:
            RuntimeError: as the graph's own checks of sizes raise.
        """
        if not self._found.symbols or not self._memory.takes(arguments):
            return None
        sizes = []
        for places in self._found.places.values():
            first, *others = (_size(arguments[position], dim) for position, dim in places)
            # Sizes that are one symbol differ, which tracing did not expect.
            # What int64 does not hold is no size, but a number, of which PyTorch refuses some uses.
            if first >= 1 << 63 or any(other != first for other in others):
                return None
            sizes.append(first)
        chosen = self._choose(sizes, arguments)
        if chosen is None or tuple(chosen) in self._numbers.bad:
            return None
        frequent = self._policy is not None and self._policy.deserves_own(tuple(sizes))
        if frequent and has_own is not None and has_own():
            return None
        actual, padded = self._numbers.of(sizes), self._numbers.of(chosen)
        if not self._numbers.fit(actual, padded, arguments):
            return None
        self._check(sizes)
        return Padded(self, arguments, tuple(chosen), actual, padded)

    def check(self, module: fx.GraphModule, padded: Padded) -> None:
        """Check that a graph for padded sizes makes tensors of the shapes that it has to.

        Torch simplifies sizes by what holds of those of calls; it need not hold of padded ones.

        Raises:
            CannotPad: it does not; calls are not padded to these sizes any more.
        """
        sizes = dict(zip(self._symbols, padded.sizes, strict=True))
        for node in module.graph.nodes:
            if PROMISED not in node.meta:
                continue
            expected = [
                size if isinstance(size, int) else size.subs(sizes) for size in node.meta[PROMISED]
            ]
            shape = compat.promise(node).shape
            # What depends on data is known when it is computed, and not padded.
            if len(expected) != len(shape) or any(
                compat.is_number(one) and one != other
                for one, other in zip(expected, shape, strict=True)
            ):
                raise self.refused(padded, f"{node} has the shape {shape}")

    def refused(self, padded: Padded, why: str) -> CannotPad:
        """The error for sizes that a graph cannot have; calls are not padded to them any more."""
        self._numbers.bad.add(padded.sizes)
        if self._policy is not None:
            self._policy.forget(padded.sizes)
        return CannotPad(why)

    def refusals(self, arguments: Sequence[Any]) -> list[str]:
        """Why sizes are not padded that differ from those of the previous call of this method.

        Each with the operator and the user's line.
        """
        before, now = self._last, {}
        for symbol in self._found.refusals:
            position, dim = self._found.places[symbol][0]
            now[symbol] = _size(arguments[position], dim)
        self._last = now
        changed = [symbol for symbol in now if now[symbol] != before.get(symbol)]
        return list(dict.fromkeys(self._found.refusals[symbol] for symbol in changed))

    def reasons(self) -> list[str]:
        """Why sizes are not padded, each with the operator and the user's line."""
        return list(dict.fromkeys(self._found.refusals.values()))

    # -- sizes -------------------------------------------------------------------------------------

    def _choose(self, sizes: list[int], arguments: Sequence[Any]) -> list[int] | None:
        """The sizes to pad to; None to leave the call as it is."""
        if self._policy is not None:
            if min(sizes[at] for at in self._padded) <= 0:
                return None
            found = self._policy.choose(tuple(sizes), self._held(sizes, arguments))
            return None if found is None else list(found)
        chosen = list(sizes)
        known = [(at, size) for at in self._padded if (size := self._next(sizes[at])) is not None]
        for at, size in known:
            chosen[at] = size
        return list(self._numbers.settled(tuple(chosen))) if known else None

    def _held(self, sizes: Sequence[int], arguments: Sequence[Any]) -> tuple[int, ...] | None:
        """The sizes that arguments are padded to already; None where one of them is not known."""
        found = list(sizes)
        for at in self._padded:
            places = self._found.places[self._symbols[at]]
            size = next(
                (
                    size
                    for position, dim in places
                    if dim is not None
                    and (size := self._memory.padded_size(arguments[position], dim)) is not None
                ),
                None,
            )
            if size is None:
                return None
            found[at] = size
        return tuple(found)

    def _next(self, size: int) -> int | None:
        buckets = self._buckets
        assert not isinstance(buckets, str)
        at = bisect_left(buckets, size)
        return buckets[at] if size >= 0 and at < len(buckets) else None

    def _check(self, sizes: Sequence[int]) -> None:
        known = dict(zip(self._symbols, sizes, strict=True))
        for check in self._found.checks:
            numbers = {
                node: compat.evaluate(compat.promise(node), known) for node in check.all_input_nodes
            }
            args, kwargs = compat.substitute((check.args, check.kwargs), numbers)
            check.target(*args, **kwargs)  # type: ignore[operator]


class Padded:
    """A call's arguments with padded sizes.

    Args:
        padding: that pads them.
        given: the arguments; emptied.
        sizes: that they are padded to.
        actual: values of sizes in the call.
        padded: values of sizes in its padded form.

    Attributes:
        arguments: for the padded graph.
        copied: bytes that were copied for it.
        original: the arguments of the call.
        may_raise: see `Paddable`.
    """

    def __init__(
        self,
        padding: GraphPadding,
        given: list[Any],
        sizes: tuple[int, ...],
        actual: Mapping[Size, int],
        padded: Mapping[Size, int],
    ) -> None:
        found, memory = padding._found, padding._memory
        self.sizes = sizes
        self.may_raise = found.may_raise
        self._memory = memory
        self._results = found.results
        self._actual, self._padded = actual, padded
        # Only these are kept: the graph frees its arguments as soon as it has read them.
        self._returned = {at: given[at] for at in found.results.values() if isinstance(at, int)}
        self.copied = 0
        self.original = list(given)
        self.arguments = list(given)
        given.clear()
        copies: dict[tuple[int, Any], tuple[torch.Tensor, torch.Tensor]] = {}
        for position, layout in found.arguments.items():
            tensor = self.arguments[position]
            key = (id(tensor), tuple(layout.dims.items()))
            if key not in copies:
                made, copied = memory.grow(
                    layout,
                    tensor,
                    actual.__getitem__,
                    padded.__getitem__,
                    written=position in found.written,
                )
                # Tensors stay alive until all are copied: another could get the same id.
                copies[key] = (tensor, made)
                self.copied += copied
            self.arguments[position] = copies[key][1]
        self._written = [
            (self.original[at], self.arguments[at], found.arguments[at])
            for at in found.written
            if self.arguments[at] is not self.original[at]
        ]
        for position, number in found.numbers.items():
            self.arguments[position] = padded[number]
        self.arguments += [
            padded[size] if dtype is None else memory.number(actual[size], dtype)
            for size, dtype in found.given
        ]

    @torch.no_grad()
    def restore(self, results: Sequence[Any], call: CallRecord) -> list[Any]:
        """The results of the graph for the sizes of the call, which counts what is copied.

        Arguments that the graph wrote into get the values of their padded copies first.
        """
        for argument, copy, layout in self._written:
            value, _ = self._cut(layout, copy)
            argument.copy_(value)
            if argument.device.type == "cpu":
                call.crossed(call.at, argument.nbytes, shared=False)
        restored = list(results)
        cut: dict[int, torch.Tensor] = {}
        for index, what in self._results.items():
            if isinstance(what, SymbolicLayout):
                tensor = results[index]
                if tensor is None:  # The token of an effect, which is promised as a tensor.
                    continue
                if id(tensor) not in cut:
                    made, copied = self._cut(what, tensor)
                    cut[id(tensor)] = made
                    if copied:
                        call.crossed(call.at, copied, shared=False)
                restored[index] = cut[id(tensor)]
            elif isinstance(what, int):
                restored[index] = self._returned[what]
            else:
                restored[index] = self._actual[what]
        return restored

    def _cut(self, layout: SymbolicLayout, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        return self._memory.cut(layout, tensor, self._actual.__getitem__, self._padded.__getitem__)


def _size(argument: Any, dim: int | None) -> int:
    size: int = argument if dim is None else argument.shape[dim]
    return size
