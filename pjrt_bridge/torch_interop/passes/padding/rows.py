"""Whether an operator keeps the rows of a dimension independent of each other.

A dimension whose size is a symbol can be padded where rows below the true size, of every result of
an operator, depend only on rows below it of the arguments. A rule gives the dimensions of the
results in which the rows are; these are compared with the shapes that torch promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat

Block = tuple[Any, Any]
"""The factors before and after a symbol in a size that is their product; numbers or expressions."""
Dims = Mapping[int, Block]
"""The dimensions of a tensor that have the rows, with what is merged into them; alone: (1, 1)."""
ALONE: Block = (1, 1)

Content = Literal["zero", "alike", "count"]
"""What is known of rows in the padding. zero: they are zero, or equal to rows before the padding;
alike: all rows are equal, before the padding too; count: each row is its own index."""


class MixesRows(Exception):
    """An operator is not known to keep the rows independent; the text says what it does."""


class Use:
    """One operator's use of a symbol.

    Args:
        node: the call.
        symbol: of sympy.
        known: where nodes before it have the rows.
        contents: what is in the padding of nodes before it, where that is known.
    """

    def __init__(
        self,
        node: fx.Node,
        symbol: Any,
        known: Mapping[fx.Node, Dims],
        contents: Mapping[fx.Node, Content],
    ) -> None:
        self.node = node
        self.symbol = symbol
        self.contents = contents
        self._known = known
        self.arguments = compat.bound_arguments(node)

    def __getitem__(self, name: str) -> Any:
        """An argument, or its default; None where the operator has none of that name."""
        return self.arguments.get(name)

    def shape(self, value: Any) -> list[Any]:
        """Sizes of a tensor, by name, node or promise: numbers and expressions."""
        value = self[value] if isinstance(value, str) else value
        promise = compat.promise(value) if isinstance(value, fx.Node) else value
        if not isinstance(promise, torch.Tensor):
            return []
        return [compat.expression(size) for size in promise.shape]

    def dims(self, value: Any) -> Dims:
        """Where a tensor, by name or node, has the rows."""
        value = self[value] if isinstance(value, str) else value
        return self._known.get(value, {})

    def plain(self, promise: torch.Tensor) -> Dims:
        """The dimensions of a promise that have the symbol, and nothing else, as their size."""
        return {at: ALONE for at, size in enumerate(self.shape(promise)) if size == self.symbol}

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

    def aligned(self, nodes: Iterable[fx.Node], rank: int | None = None) -> Dims:
        """Where the rows are when tensors are broadcast together, to a number of dimensions.

        Raises:
            MixesRows: the rows of two tensors are in different dimensions.
        """
        several = list(nodes)
        if rank is None:
            rank = max((len(self.shape(node)) for node in several), default=0)
        found: dict[int, Block] = {}
        for node in several:
            for dim, block in self.dims(node).items():
                at = dim + rank - len(self.shape(node))
                if found.setdefault(at, block) != block:
                    raise MixesRows("it combines the dimension with one that is merged otherwise")
        for node in several:
            self.meets(node, found, rank)
        return found

    def meets(self, node: fx.Node, found: Dims, rank: int) -> None:
        """Check that a tensor that is broadcast has the same rows, or one for all.

        Raises:
            MixesRows: it has neither.
        """
        shape, own = self.shape(node), self.dims(node)
        for at in found:
            dim = at - rank + len(shape)
            if dim >= 0 and dim not in own and shape[dim] != 1:
                raise MixesRows("it combines the dimension with one of another size")

    def looks_up(self, index: fx.Node, size: Any) -> None:
        """Check that indices in the padding are in range.

        They have to be zero, or equal in all rows. The device clamps others, but PyTorch, which
        runs the graph where the device fails, raises.

        Raises:
            MixesRows: they may be out of range.
        """
        if self.dims(index) and self.contents.get(index) not in ("zero", "alike"):
            raise MixesRows("indices that it computes may be out of range in the padding")
        if self.dims(index) and compat.least(size) < 1:
            raise MixesRows("what it looks up in may be empty")


@dataclass(frozen=True)
class Rule:
    """What an operator does with a dimension.

    Attributes:
        dims: where the results have the rows: all of them, or each one.
        sizes: arguments that may be the symbol as a number.
        moves: whether elements of the results are elements of its operands.
        makes: what is in the padding of tensors that it creates.
        computes: whether `sizes` may be computed from the symbol.
    """

    dims: Callable[[Use], Dims | list[Dims]]
    sizes: tuple[str, ...] = ()
    moves: bool = False
    makes: Content | None = None
    computes: bool = False


@dataclass(frozen=True)
class IndependentRows:
    """The rows of the results of an operator that keeps them independent.

    Attributes:
        dims: where each result has them.
        content: what is in the padding.
    """

    dims: list[Dims]
    content: Content | None


def independent_rows(use: Use, rule: Rule | None) -> IndependentRows:
    """Check one use of a symbol.

    Raises:
        MixesRows: rows are not kept independent, or it is not known.
    """
    if rule is None:
        raise MixesRows("it is not known to keep the rows of the dimension apart")
    for name, value in use.arguments.items():
        for number in map(compat.expression, _numbers(value)):
            allowed = name in rule.sizes and (rule.computes or number == use.symbol)
            if _has(number, use.symbol) and not allowed:
                raise MixesRows("it uses the size as a number")
    found, results = rule.dims(use), use.results
    dims = found if isinstance(found, list) else [found] * len(results)
    if not any(isinstance(result, torch.Tensor) for result in results):
        raise MixesRows("it gives something else than tensors")
    if not all(map(_agrees, [use] * len(results), results, dims)):
        raise MixesRows("its results have the size elsewhere than its arguments")
    return IndependentRows(dims, _moved(use) if rule.moves else rule.makes)


def _moved(use: Use) -> Content | None:
    """The padding of the results of an operator that only moves elements."""
    # An operand without rows is the same for all of them.
    found = {use.contents.get(item) if use.dims(item) else "alike" for item in use.tensors}
    return found.pop() if len(found) == 1 else None


def _agrees(use: Use, result: Any, dims: Dims) -> bool:
    """Whether a promise has the symbol in these dimensions, and nowhere else."""
    for at, size in enumerate(use.shape(result)):
        if at in dims:
            before, after = dims[at]
            if size != before * use.symbol * after:
                return False
        elif _has(size, use.symbol):
            return False
    return not isinstance(result, torch.Tensor) or all(at < result.dim() for at in dims)


def _has(number: Any, symbol: Any) -> bool:
    return symbol in getattr(number, "free_symbols", ())


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, fx.Node) and not isinstance(compat.promise(value), torch.Tensor):
        yield compat.promise(value)
