"""Rules of operators with padded dimensions: which their results have, and what is to be filled.

Elements of results that are not padding must not depend on padding of the arguments. Operators that
keep rows apart are called as they are. Others get arguments whose padding is filled with what does
not change their results, zeros for a sum, or are replaced by what computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import (
    Extent,
    MergedOtherwise,
    MixesRows,
    PaddedDims,
    PythonNumber,
    Size,
    Symbol,
    check_merged_alike,
    depends,
    extent_of,
    has_prefix,
    product,
)


@dataclass(frozen=True)
class TensorPadding:
    """The padding of a tensor.

    Attributes:
        dims: its padded dimensions.
        fill: what all its padding is; None where that is not known.
    """

    dims: PaddedDims = field(default_factory=dict)
    fill: PythonNumber | None = None


NOT_PADDED = TensorPadding()


class Use:
    """One call of an operator with padded tensors.

    Args:
        node: the call.
        symbols: that are padded.
        known: what is known of tensors before it.
        hints: how padded dimensions of its result may be merged, where all rows are the same.

    Attributes:
        alike: whether it asked for hints.
    """

    def __init__(
        self,
        node: fx.Node,
        symbols: Container[Symbol],
        known: Mapping[fx.Node, TensorPadding],
        hints: PaddedDims | None = None,
    ) -> None:
        self._hints = hints or {}
        self.alike = False
        self.node = node
        self.symbols = symbols
        self._known = known
        self.arguments = compat.bound_arguments(node)
        self.fills: dict[fx.Node, tuple[PythonNumber, frozenset[int]]] = {}
        self.emit: Callable[[Emission], Any] | None = None
        self.result_fill: PythonNumber | None = None
        self.repeats_elements = False
        self.equal: list[tuple[Size, Size]] = []
        self.positive: list[Size] = []

    def __getitem__(self, name: str) -> Any:
        """An argument, or its default; None where the operator has none of that name."""
        return self.arguments.get(name)

    def _named(self, value: Any) -> Any:
        return self[value] if isinstance(value, str) else value

    def shape(self, value: Any) -> list[Size]:
        """Sizes of a tensor, by name, node or promise."""
        value = self._named(value)
        promise = compat.promise(value) if isinstance(value, fx.Node) else value
        if not isinstance(promise, torch.Tensor):
            return []
        return [compat.expression(size) for size in promise.shape]

    def rank(self, value: Any) -> int:
        """The number of dimensions of a tensor, by name or node."""
        return len(self.shape(value))

    def rows(self, value: Any) -> TensorPadding:
        """The padding of a tensor, by name or node."""
        value = self._named(value)
        return self._known.get(value, NOT_PADDED) if isinstance(value, fx.Node) else NOT_PADDED

    def dims(self, value: Any) -> PaddedDims:
        """The padded dimensions of a tensor, by name or node."""
        return self.rows(value).dims

    def is_padded(self, size: Size) -> bool:
        """Whether a size depends on padded symbols."""
        return depends(size, self.symbols)

    def promised(self, promise: torch.Tensor) -> PaddedDims:
        """The padded dimensions of a result, each with all its padding behind it."""
        return {
            at: extent_of(size)
            for at, size in enumerate(self.shape(promise))
            if self.is_padded(size)
        }

    def promised_alike(self, promise: torch.Tensor) -> PaddedDims:
        """As `promised`, for a result whose rows are the same: it may be merged in any way."""
        self.alike = True
        found = dict(self.promised(promise))
        for at in found.keys() & self._hints.keys():
            # A hint may come from another graph, where the size has other names.
            if compat.is_same_size(product(self._hints[at]), product(found[at])):
                found[at] = self._hints[at]
        return found

    def named(self, name: str, rank: int) -> set[int]:
        """Dimensions that an argument names, counted from the front; all where it names none."""
        value = self[name]
        if value is None or value == []:
            return set(range(rank))
        several = value if isinstance(value, Sequence) else [value]
        return {dim % max(rank, 1) for dim in several}

    def number(self, value: Any) -> Any:
        """A number argument, or its expression; None for None."""
        return compat.expression(compat.promise(value) if isinstance(value, fx.Node) else value)

    def row(self, value: Any, dim: int) -> Size:
        """The position of one row of `self`, counted from the first.

        Raises:
            MixesRows: a call decides from which end it counts.
        """
        return self.number(self._from_the_first(value, dim))

    def start(self, value: Any, dim: int) -> Size:
        """The position of the first of some rows of `self`; one before all rows is moved to 0.

        Raises:
            MixesRows: a call decides from which end it counts, or whether it is moved.
        """
        found = self._from_the_first(0 if value is None else value, dim)
        side = compat.sign(found)
        if side is None:
            raise MixesRows("it uses a position that may be before the first row")
        return self.number(found) if side == 1 else 0

    def _from_the_first(self, value: Any, dim: int) -> Any:
        given = compat.promise(value) if isinstance(value, fx.Node) else value
        side = compat.sign(given)
        if side is None:
            raise MixesRows("it uses a position that may count from either end")
        return given if side == 1 else compat.promise(self["self"]).shape[dim] + given

    @property
    def tensors(self) -> list[fx.Node]:
        """All arguments that are tensors."""
        used = self.node.all_input_nodes
        return [node for node in used if isinstance(compat.promise(node), torch.Tensor)]

    @property
    def results(self) -> list[Any]:
        """Promises of its results; not all of them need be tensors."""
        promise = compat.promise(self.node)
        return list(promise) if isinstance(promise, (tuple, list)) else [promise]

    @property
    def result(self) -> torch.Tensor:
        """The promise of its one result."""
        (promise,) = self.results
        assert isinstance(promise, torch.Tensor)
        return promise

    # -- demands -----------------------------------------------------------------------------------

    def fill(self, value: Any, number: PythonNumber, dims: Iterable[int] | None = None) -> None:
        """Have the padding of a tensor, by name or node, filled; of some dimensions, or of all.

        Raises:
            MixesRows: it is to be filled with another number, too.
        """
        value = self._named(value)
        rows = self.rows(value)
        wanted = frozenset(rows.dims if dims is None else rows.dims.keys() & set(dims))
        if wanted and rows.fill != number:
            other, dims_of_other = self.fills.get(value, (number, frozenset()))
            if repr(other) != repr(number):
                raise MixesRows("it takes a tensor in two ways")
            self.fills[value] = (number, wanted | dims_of_other)

    def needs_prefix(self, extent: Extent) -> None:
        """Check that all padding is behind what is kept.

        Raises:
            MergedOtherwise: it is not.
        """
        if not has_prefix(extent, self.symbols):
            raise MergedOtherwise(extent, extent_of(product(extent)), by_hint=False)

    def needs_elements(self, size: Size) -> None:
        """Have calls in which a size is 0 not padded: the operator refuses them."""
        self.positive.append(size)

    def unified(self, one: Extent, other: Extent) -> None:
        """Check that two extents are the same, or have calls checked for it.

        Raises:
            MixesRows: they are not.
        """
        if one == other:
            return
        if len(one) != len(other) or any(
            self.is_padded(a) != self.is_padded(b) or (a != b and not self.is_padded(a))
            for a, b in zip(one, other, strict=True)
        ):
            whole, parts = product(one), product(other)
            pairs = [] if compat.is_same_size(whole, parts) else [(whole, parts)]
            raise MergedOtherwise(one, other, by_hint=True, equal=pairs)
        self.equal += [(a, b) for a, b in zip(one, other, strict=True) if a != b]

    def same(self, one: PaddedDims, other: PaddedDims) -> None:
        """Check that the same dimensions are padded, with the same extents; see `unified`.

        Raises:
            MixesRows: they are not.
        """
        if one.keys() != other.keys():
            raise MixesRows("it combines the dimension with one of another size")
        for dim, extent in one.items():
            self.unified(extent, other[dim])

    def aligned(self, nodes: Iterable[fx.Node], rank: int | None = None) -> dict[int, Extent]:
        """The padded dimensions of tensors that are broadcast together.

        Args:
            nodes: the tensors.
            rank: the number of dimensions of what they are broadcast to; by default the largest.

        Raises:
            MixesRows: a dimension is padded in one and another size in the other.
        """
        several = list(nodes)
        rank = max(map(self.rank, several), default=0) if rank is None else rank
        found: dict[int, Extent] = {}
        for node in several:
            for dim, extent in self.dims(node).items():
                self.unified(found.setdefault(dim + rank - self.rank(node), extent), extent)
        for node in several:
            self.check_broadcast(node, found, rank)
        return found

    def check_broadcast(self, node: fx.Node, found: PaddedDims, rank: int) -> None:
        """Check that a tensor that is broadcast has the same padded dimensions, or one row for all.

        Raises:
            MixesRows: it has neither.
        """
        shape, own = self.shape(node), self.dims(node)
        for at in found:
            dim = at - rank + len(shape)
            if dim >= 0 and dim not in own and shape[dim] != 1:
                # Torch may have found since that what is calculated from sizes is this number.
                if not isinstance(shape[dim], int) or product(found[at]) in self.symbols:
                    raise MixesRows("it combines the dimension with one of another size")
                self.equal.append((product(found[at]), shape[dim]))


@dataclass(frozen=True)
class PaddingRule:
    """The rule of an operator with padded dimensions.

    Attributes:
        dims: the padded dimensions of the results: of all of them, or of each; asks the use for
            what has to be filled or emitted.
        sizes: arguments that may be sizes of the padded call.
        moves: whether elements of the results are elements of its operands.
        only_checks: whether it has no results, and raises for what it finds in its arguments.
    """

    dims: Callable[[Use], PaddedDims | list[PaddedDims]]
    sizes: tuple[str, ...] = ()
    moves: bool = False
    only_checks: bool = False


def apply_rule(use: Use, rule: PaddingRule | None) -> list[TensorPadding]:
    """The results of a call.

    Raises:
        MixesRows: it cannot be padded, or it is not known how.
    """
    if rule is None:
        raise MixesRows("it is not known what it does with the padding")
    found, results = rule.dims(use), use.results
    # Rules combine rows of a gradient, say, with those of what the forward graph saved.
    check_merged_alike(one for item in use.tensors for one in use.dims(item).values())
    if use.emit is None:
        for name, value in use.arguments.items():
            if name not in rule.sizes and any(map(use.is_padded, _numbers(value))):
                raise MixesRows("it uses the size as a number")
    dims = found if isinstance(found, list) else [found] * len(results)
    dims = [_without_known(use, *pair) for pair in zip(results, dims, strict=True)]
    if not rule.only_checks and not any(isinstance(item, torch.Tensor) for item in results):
        raise MixesRows("it gives something else than tensors")
    if not all(map(_agrees, [use] * len(results), results, dims)):
        raise MixesRows("its results have the size elsewhere than its arguments")
    dims = [_as_promised(use, *pair) for pair in zip(results, dims, strict=True)]
    return [TensorPadding(one, _moved(use, one) if rule.moves else use.result_fill) for one in dims]


def _moved(use: Use, dims: PaddedDims) -> PythonNumber | None:
    """The padding of a result of an operator that only moves elements."""
    if use.repeats_elements:
        return None
    found = {
        use.fills[item][0] if item in use.fills else use.rows(item).fill for item in use.tensors
    }
    # With less padding of its own, elements of an operand become padding of the result.
    whole = all(_padded(use, use.dims(item)) == _padded(use, dims) for item in use.tensors)
    return found.pop() if len(found) == 1 and whole else None


def _padded(use: Use, dims: PaddedDims) -> int:
    """How many factors of sizes are padded."""
    return sum(use.is_padded(factor) for extent in dims.values() for factor in extent)


def _agrees(use: Use, result: Any, dims: PaddedDims) -> bool:
    """Whether a promise has padded sizes in these dimensions, and nowhere else."""
    if not isinstance(result, torch.Tensor):
        return not dims
    shape = use.shape(result)
    if any(at >= len(shape) for at in dims):
        return False
    for at, size in enumerate(shape):
        if at in dims:
            if not compat.is_same_size(product(dims[at]), size) and not _unified(use, size):
                return False
        elif use.is_padded(size):
            return False
    return True


def _without_known(use: Use, result: Any, dims: PaddedDims) -> PaddedDims:
    """Without dimensions whose size, no symbol itself, torch found to be a number: not padded."""
    shape = use.shape(result) if isinstance(result, torch.Tensor) else ()
    numbers = [at for at, size in enumerate(shape) if at in dims and isinstance(size, int)]
    known = {at: whole for at in numbers if (whole := product(dims[at])) not in use.symbols}
    use.equal += [(whole, shape[at]) for at, whole in known.items()]
    return {at: extent for at, extent in dims.items() if at not in known}


def _as_promised(use: Use, result: Any, dims: PaddedDims) -> PaddedDims:
    """Padded dimensions by the sizes that torch promises, where these are equal in other words.

    Operators that follow are promised those: `s0`, say, where factors are `s0 // 4` and 4.
    """
    if not isinstance(result, torch.Tensor):
        return dims
    shape, made = use.shape(result), dict(dims)
    for at, extent in dims.items():
        whole = product(extent)
        if not compat.is_same_size(whole, shape[at]) and has_prefix(extent, use.symbols):
            use.equal.append((whole, shape[at]))
            made[at] = extent_of(shape[at])
    return made


def _unified(use: Use, size: Size) -> bool:
    return bool(use.equal) and use.is_padded(size)


def _numbers(value: Any) -> Iterator[Any]:
    """Expressions among a call's arguments."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, fx.Node):
        if not isinstance(compat.promise(value), torch.Tensor):
            yield compat.expression(compat.promise(value))
    elif compat.is_symbolic(value):
        yield compat.expression(value)
