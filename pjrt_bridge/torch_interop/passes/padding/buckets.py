"""Padding: symbolic sizes are padded to the next bucket, so that one compilation serves many sizes.

Arguments are padded with zeros and results are cropped, for the sizes that `paddable` finds; other
sizes stay those of the call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pjrt_bridge.mixed.execution import CallRecord
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.paddable import Layout, Paddable, Sizes, find


class Padding:
    """How a symbolic graph's arguments are padded.

    Args:
        module: the graph.
        buckets: sizes to pad to, increasing.

    Attributes:
        module: the graph to compile, without the checks of padded sizes, which `pad` evaluates.
        positions: of the arguments that are padded.
    """

    def __init__(self, module: fx.GraphModule, buckets: Sequence[int]) -> None:
        self._buckets = tuple(buckets)
        self._found = find(module)
        self.module = self._found.module
        self._last: Sizes = {}
        self.positions = frozenset(self._found.arguments)

    def pad(self, arguments: list[Any]) -> Padded | None:
        """Pad the arguments of a call, and empty the list.

        Returns:
            None, and the list as it is, where there is nothing to pad or no bucket is large enough.

        Raises:
            RuntimeError: as the graph's own checks of sizes raise.
        """
        if not self._found.symbols:
            return None
        sizes: Sizes = {}
        consistent = True
        for symbol, places in self._found.places.items():
            first, *others = (_size(arguments[position], dim) for position, dim in places)
            sizes[symbol] = first
            consistent = consistent and all(other == first for other in others)
        for check in self._found.checks:
            numbers = {
                node: compat.evaluate(compat.promise(node), sizes) for node in check.all_input_nodes
            }
            args, kwargs = compat.substitute((check.args, check.kwargs), numbers)
            check.target(*args, **kwargs)  # type: ignore[operator]
        padded = {symbol: self._next(sizes[symbol]) for symbol in self._found.symbols}
        # Sizes that are one symbol differ, which tracing did not expect: the graph has to handle
        # it.
        if not (consistent and any(padded.values())):
            return None
        chosen = {symbol: size or sizes[symbol] for symbol, size in padded.items()}
        return Padded(self._found, arguments, sizes, chosen)

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

    def _next(self, size: int) -> int | None:
        at = bisect_left(self._buckets, size)
        return self._buckets[at] if size >= 0 and at < len(self._buckets) else None


class Padded:
    """A call's arguments with padded sizes.

    Args:
        found: where the sizes are.
        given: the arguments; emptied.
        sizes: of the call.
        padded: what they become.

    Attributes:
        arguments: for the graph.
        copied: bytes that were copied for it.
    """

    def __init__(self, found: Paddable, given: list[Any], sizes: Sizes, padded: Sizes) -> None:
        self._results = found.results
        self._sizes, self._padded = sizes, padded
        # Only these are kept: the graph frees its arguments as soon as it has read them.
        self._returned = {at: given[at] for at in found.results.values() if isinstance(at, int)}
        self.copied = 0
        self.arguments = list(given)
        given.clear()
        copies: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}
        originals = []
        for position, layout in found.arguments.items():
            tensor = self.arguments[position]
            shape = layout.grown(tensor.shape, padded)
            strides = layout.strides(shape)
            if tensor.shape == shape and tensor.stride() == strides:
                continue
            if (id(tensor), strides) not in copies:
                # IndependentRows alive until all are copied: another tensor could get the same id.
                originals.append(tensor)
                copies[id(tensor), strides] = _grown(tensor, layout, shape, strides)
                self.copied += copies[id(tensor), strides].nbytes
            self.arguments[position] = copies[id(tensor), strides]
        for position, symbol in found.numbers.items():
            self.arguments[position] = padded[symbol]

    def restore(self, results: Sequence[Any], call: CallRecord) -> list[Any]:
        """The results of the graph for the sizes of the call, which counts what is copied."""
        restored = list(results)
        cut: dict[int, torch.Tensor] = {}
        for index, what in self._results.items():
            if isinstance(what, Layout):
                tensor = results[index]
                if id(tensor) not in cut:
                    shape = what.cut(tensor.shape, self._padded, self._sizes)
                    cut[id(tensor)] = _cut(tensor, what, shape, call)
                restored[index] = cut[id(tensor)]
            elif isinstance(what, int):
                restored[index] = self._returned[what]
            else:
                restored[index] = self._sizes[what]
        return restored


def _size(argument: Any, dim: int | None) -> int:
    size: int = argument if dim is None else argument.shape[dim]
    return size


def _grown(
    tensor: torch.Tensor, layout: Layout, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    """A copy of a tensor in the first rows of a larger one, and zeros in the others."""
    with torch.no_grad():
        made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
        inner = made
        for dim in layout.dims:
            size = tensor.shape[dim]
            inner.narrow(dim, size, shape[dim] - size).zero_()
            inner = inner.narrow(dim, 0, size)
        inner.copy_(tensor)
    return made


def _cut(
    tensor: torch.Tensor, layout: Layout, shape: tuple[int, ...], call: CallRecord
) -> torch.Tensor:
    """The first rows of a tensor, in the strides that torch promises."""
    own = tensor.stride()
    strides = own if layout.is_outermost(own) else layout.strides(shape)
    if tensor.shape == shape and own == strides:
        return tensor
    inner = torch.empty(0, dtype=tensor.dtype)
    if all(size < 2 or a == b for size, a, b in zip(shape, own, strides, strict=True)):
        # Not a view to autograd, which would forbid the user to write into it.
        return inner.set_(tensor.untyped_storage(), tensor.storage_offset(), shape, strides)
    once = tuple(1 if dim in layout.repeated else size for dim, size in enumerate(shape))
    inner.set_(tensor.untyped_storage(), tensor.storage_offset(), once, own)
    made = torch.empty_strided(once, strides, dtype=tensor.dtype).copy_(inner)
    call.crossed(call.at, made.nbytes, shared=False)
    return made.set_(made.untyped_storage(), 0, shape, strides)
