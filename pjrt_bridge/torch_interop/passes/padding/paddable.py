"""Which symbolic sizes of a graph can be padded, and where they are.

A symbol can be padded if it is itself the size of dimensions of arguments, and if every operator on
them is known to keep the rows of those dimensions independent.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge.errors import UnsupportedDtype
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.torch_interop import compat, nodes
from pjrt_bridge.torch_interop.nodes import is_mutation, source_line
from pjrt_bridge.torch_interop.passes.padding.rows import (
    ALONE,
    Content,
    Dims,
    MixesRows,
    Use,
    independent_rows,
)
from pjrt_bridge.torch_interop.passes.padding.rules import rule_of
from pjrt_bridge.torch_interop.tensors import result_spec

Symbol = Any
"""A symbol of sympy."""
Sizes = dict[Symbol, int]


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory, whatever the sizes are.

    Attributes:
        dims: which dimensions are padded, and the symbols that are their sizes.
        slowest: dimensions from the slowest to the fastest varying.
        repeated: dimensions of stride 0.
    """

    dims: Mapping[int, Symbol]
    slowest: tuple[int, ...]
    repeated: frozenset[int] = frozenset()

    def grown(self, shape: Sequence[int], padded: Sizes) -> tuple[int, ...]:
        """The shape of an argument with padded sizes."""
        return tuple(
            padded[self.dims[dim]] if dim in self.dims else size for dim, size in enumerate(shape)
        )

    def cut(self, shape: Sequence[int], padded: Sizes, sizes: Sizes) -> tuple[int, ...]:
        """The shape of a result of padded sizes, which may be merged with others behind them."""
        return tuple(
            size // padded[self.dims[dim]] * sizes[self.dims[dim]] if dim in self.dims else size
            for dim, size in enumerate(shape)
        )

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Of a tensor of this shape without gaps."""
        strides, step = [0] * len(shape), 1
        for dim in reversed(self.slowest):
            if dim not in self.repeated:
                strides[dim] = step
                step *= max(shape[dim], 1)
        return tuple(strides)

    def is_outermost(self, strides: Sequence[int]) -> bool:
        """Whether the strides do not depend on the padded size: the padding is at the end."""
        padded = [strides[dim] for dim in self.dims if strides[dim]]
        return not padded or (len(padded) == 1 and padded[0] == max(strides))


@dataclass(frozen=True)
class Paddable:
    """The symbols of a graph that can be padded.

    Attributes:
        module: the graph without the checks of sizes that are padded.
        checks: these, in order.
        symbols: those that are padded.
        places: of symbols: positions of arguments, and dimensions, or None where the argument is
            the number.
        arguments: for positions of tensors that are padded how to lay them out.
        numbers: for positions of sizes that are padded the symbols.
        results: for indices of results that have padded sizes: their layout, the position of an
            argument that is returned, or the symbol of a size.
        refusals: for other symbols that are sizes, why they are not padded.
    """

    module: fx.GraphModule
    checks: tuple[fx.Node, ...]
    symbols: tuple[Symbol, ...]
    places: Mapping[Symbol, Sequence[tuple[int, int | None]]]
    arguments: Mapping[int, Layout]
    numbers: Mapping[int, Symbol]
    results: Mapping[int, Layout | Symbol | int]
    refusals: Mapping[Symbol, str]


def find(module: fx.GraphModule) -> Paddable:
    """Find the symbols of a functional graph that can be padded."""
    return _Search(module).run()


class _Search:
    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._nodes = list(module.graph.nodes)
        self._placeholders = [node for node in self._nodes if node.op == "placeholder"]
        self._places: dict[Symbol, list[tuple[int, int | None]]] = {}
        for position, node in enumerate(self._placeholders):
            for dim, size in _sizes(compat.promise(node)):
                if getattr(size, "is_symbol", False):
                    self._places.setdefault(size, []).append((position, dim))
        self._refused: dict[Symbol, str] = {}
        # For each symbol: where nodes have the rows, for nodes with several results too, and the
        # padding.
        self._known: dict[Symbol, dict[fx.Node, Dims]] = {item: {} for item in self._places}
        self._several: dict[Symbol, dict[fx.Node, list[Dims]]] = {item: {} for item in self._places}
        self._contents: dict[Symbol, dict[fx.Node, Content]] = {item: {} for item in self._places}
        self._checks: list[fx.Node] = []

    def run(self) -> Paddable:
        for node in self._nodes:
            self._visit(node)
        outputs = self._nodes[-1].args[0]
        self._judge_results(outputs)
        are_sizes = {
            size
            for node in self._nodes
            for dim, size in _sizes(compat.promise(node))
            if dim is not None
        }
        symbols = [item for item in self._places if item not in self._refused]
        padded = set(symbols)
        checks = [node for node in self._checks if self._met(node) & padded]
        arguments, numbers = {}, {}
        for position, node in enumerate(self._placeholders):
            dims = _dims(node, padded)
            if dims:
                arguments[position] = _layout(node, dims, dense=True)
            elif (number := _number(node)) in padded:
                numbers[position] = number
        results = dict(self._results(outputs, padded))
        return Paddable(
            module=_without(self._module, checks) if checks else self._module,
            checks=tuple(checks),
            symbols=tuple(symbols),
            places=self._places,
            arguments=arguments,
            numbers=numbers,
            results=results,
            refusals={item: why for item, why in self._refused.items() if item in are_sizes},
        )

    # -- nodes -------------------------------------------------------------------------------------

    def _visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._judge_placeholder(node)
        elif node.op != "call_function":
            return
        elif is_mutation(node):
            target = node.args[0]
            self._refuse(_dims(target, self._places).values(), "it is written into", node)
        elif nodes.is_check(node):
            if self._met(node) <= set(self._places):
                self._checks.append(node)
            else:
                self._refuse(self._met(node), "it is checked with a number that is not one", node)
        elif node.target is operator.getitem:
            self._take(node)
        elif nodes.is_size_computation(node):
            self._judge_number(node)
        else:
            self._judge(node)

    def _judge_placeholder(self, node: fx.Node) -> None:
        for _, size in _sizes(compat.promise(node)):
            if not getattr(size, "is_symbol", False):
                self._refuse(_free(size), "an argument has a size that is computed from it", node)
        dims = _dims(node, self._places)
        for dim, symbol in dims.items():
            self._contents[symbol][node] = "zero"
            self._known[symbol].setdefault(node, {})
            self._known[symbol][node] = {**self._known[symbol][node], dim: ALONE}
        if dims and not _can_lie(node):
            self._refuse(dims.values(), "it is a tensor that the bridge cannot lay out", node)

    def _judge_number(self, node: fx.Node) -> None:
        """Torch simplifies numbers by relations of sizes, which need not hold of padded ones."""
        if _derived(node) != compat.expression(compat.promise(node)) and not all(
            map(nodes.is_check, node.users)
        ):
            self._refuse(self._met(node), "the number may be another in the padding", node)

    def _take(self, node: fx.Node) -> None:
        source, index = node.args
        assert isinstance(source, fx.Node)
        assert isinstance(index, int)
        for symbol, several in self._several.items():
            if source in several:
                self._known[symbol][node] = several[source][index]
            if source in self._contents[symbol]:
                self._contents[symbol][node] = self._contents[symbol][source]

    def _judge(self, node: fx.Node) -> None:
        promise = compat.promise(node)
        for symbol in self._met(node) | _symbols(promise):
            if symbol not in self._places or symbol in self._refused:
                continue
            use = Use(node, symbol, self._known[symbol], self._contents[symbol])
            try:
                kept = independent_rows(use, rule_of(node.target))
            except MixesRows as mixing:
                self._refuse([symbol], str(mixing), node)
            except Exception as error:
                # An error in a rule must only prevent padding, not fail the model.
                reason = f"its rule failed: {type(error).__name__}: {error}"
                self._refuse([symbol], reason, node)
            else:
                self._several[symbol][node] = kept.dims
                if not isinstance(promise, (tuple, list)):
                    self._known[symbol][node] = kept.dims[0]
                if kept.content is not None:
                    self._contents[symbol][node] = kept.content

    def _met(self, node: fx.Node) -> set[Symbol]:
        """Symbols in what a node takes."""
        return {item for used in node.all_input_nodes for item in _symbols(compat.promise(used))}

    def _refuse(self, symbols: Iterable[Symbol], reason: str, node: fx.Node) -> None:
        name = compat.label(node.target) if node.op == "call_function" else ""
        why = str(FallbackReason(name, reason, "refused", source_line(node)))
        for symbol in symbols:
            if symbol in self._places:
                self._refused.setdefault(symbol, why)

    # -- results -----------------------------------------------------------------------------------

    def _judge_results(self, outputs: Sequence[Any]) -> None:
        memories: dict[int, set[fx.Node]] = {}
        for node in outputs:
            if not isinstance(node, fx.Node) or node.op == "placeholder":
                continue
            promise = compat.promise(node)
            if not isinstance(promise, torch.Tensor):
                for _, size in _sizes(promise):
                    if not getattr(size, "is_symbol", False):
                        self._refuse(_free(size), "a number computed from it is a result", node)
                continue
            dims = self._dims_of(node, self._places)
            for symbol in self._places:
                if any(before != 1 for before, _ in self._known[symbol].get(node, {}).values()):
                    self._refuse([symbol], "in a result it is merged with what is before it", node)
            if dims and not _can_lie(node):
                self._refuse(dims.values(), "it is a tensor that the bridge cannot lay out", node)
            elif (memory := compat.storage_identity(promise)) is not None:
                memories.setdefault(memory, set()).add(node)
        for sharing in memories.values():
            for node in sharing if len(sharing) > 1 else ():
                dims = self._dims_of(node, self._places)
                if dims and not Layout(dims, ()).is_outermost(_strides(node)):
                    self._refuse(dims.values(), "its memory is that of another result", node)

    def _dims_of(self, node: fx.Node, symbols: Iterable[Symbol]) -> dict[int, Symbol]:
        """The dimensions of a node with these symbols, including merged ones."""
        known = self._known
        return {dim: symbol for symbol in symbols for dim in known[symbol].get(node, {})}

    def _results(
        self, outputs: Sequence[Any], padded: set[Symbol]
    ) -> Iterator[tuple[int, Layout | Symbol | int]]:
        for index, node in enumerate(outputs):
            if not isinstance(node, fx.Node):
                continue
            if dims := self._dims_of(node, padded):
                argument = node.op == "placeholder"
                position = self._placeholders.index(node) if argument else 0
                yield index, position if argument else _layout(node, dims)
            elif (number := _number(node)) in padded:
                yield index, number


def _sizes(promise: Any) -> Iterator[tuple[int | None, Any]]:
    """Symbolic sizes of tensors, each with its dimension, and symbolic numbers."""
    if isinstance(promise, (tuple, list)):
        for item in promise:
            yield from _sizes(item)
    elif isinstance(promise, torch.Tensor):
        for dim, size in enumerate(promise.shape):
            if compat.is_symbolic(size):
                yield dim, compat.expression(size)
    elif compat.is_symbolic(promise):
        yield None, compat.expression(promise)


def _number(node: fx.Node) -> Any:
    """The expression of a symbolic number; None for anything else."""
    promise = compat.promise(node)
    is_number = compat.is_symbolic(promise) and not isinstance(promise, torch.Tensor)
    return compat.expression(promise) if is_number else None


def _symbols(promise: Any) -> set[Symbol]:
    return {symbol for _, size in _sizes(promise) for symbol in _free(size)}


def _derived(value: Any) -> Any:
    """A number as an expression that holds for all sizes; None where there is none."""
    if not isinstance(value, fx.Node):
        return value
    name = compat.operator_name(value.target) if value.op == "call_function" else None
    if value.op == "placeholder":
        return compat.expression(compat.promise(value))
    if name in ("aten.sym_size.int", "aten.sym_numel.default"):
        tensor, *dims = value.args
        assert isinstance(tensor, fx.Node)
        shape = compat.promise(tensor).shape
        return math.prod(compat.expression(shape[dim]) for dim in dims or range(len(shape)))
    if value.target not in (operator.add, operator.sub, operator.mul, operator.floordiv):
        return None
    left, right = map(_derived, value.args)
    if left is None or right is None:
        return None
    if value.target is not operator.floordiv:
        return value.target(left, right)
    return compat.quotient(left, right)


def _free(size: Any) -> set[Symbol]:
    found: set[Symbol] = getattr(size, "free_symbols", set())
    return found


def _dims(node: Any, symbols: Iterable[Symbol]) -> dict[int, Symbol]:
    """The dimensions of a tensor with these symbols as their sizes."""
    promise = compat.promise(node)
    if not isinstance(promise, torch.Tensor):
        return {}
    return {dim: size for dim, size in _sizes(promise) if dim is not None and size in symbols}


def _can_lie(node: fx.Node) -> bool:
    try:
        _layout(node, {})
    except (UnsupportedDtype, ValueError):
        return False
    return compat.promise(node).layout is torch.strided


def _strides(node: fx.Node) -> tuple[int, ...]:
    found: tuple[int, ...] = compat.stand_in(compat.promise(node)).stride()
    return found


def _layout(node: fx.Node, dims: Mapping[int, Symbol], *, dense: bool = False) -> Layout:
    """How the bridge lays out a tensor; `dense`: with every element in a place of its own."""
    spec = result_spec(compat.stand_in(compat.promise(node)))
    slowest = tuple(range(len(spec.strides)))
    repeated = frozenset(dim for dim in slowest if spec.strides[dim] == 0)
    if repeated and dense:
        # All views that torch allows of it are possible of a row-major tensor, too.
        return Layout(dims, slowest)
    return Layout(dims, spec.order or slowest, repeated)


def _without(module: fx.GraphModule, dropped: Iterable[fx.Node]) -> fx.GraphModule:
    """A copy of a graph without some nodes, which nothing reads."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, copies))
    for node in dropped:
        graph.erase_node(copies[node])
    return fx.GraphModule(module, graph)
