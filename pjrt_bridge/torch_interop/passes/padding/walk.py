"""One walk through a symbolic graph, which makes its padded form."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.torch_interop import compat, nodes
from pjrt_bridge.torch_interop.nodes import is_mutation, source_line
from pjrt_bridge.torch_interop.passes.data_bounds import mark_checked
from pjrt_bridge.torch_interop.passes.padding import positions
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import (
    Extent,
    MixesRows,
    PaddedDims,
    Size,
    Symbol,
    depends,
    extent_of,
    product,
)
from pjrt_bridge.torch_interop.passes.padding.falling import equal_symbols
from pjrt_bridge.torch_interop.passes.padding.layouts import SymbolicLayout
from pjrt_bridge.torch_interop.passes.padding.memory import HOST, PaddingMemory
from pjrt_bridge.torch_interop.passes.padding.merging import Applied, apply
from pjrt_bridge.torch_interop.passes.padding.paddable import PROMISED, Paddable
from pjrt_bridge.torch_interop.passes.padding.promises import (
    free_symbols,
    number_of,
    symbolic_sizes,
)
from pjrt_bridge.torch_interop.passes.padding.rows import NOT_PADDED, TensorPadding
from pjrt_bridge.torch_interop.passes.padding.rules import rule_of


class Walk:
    """Makes the padded form of a graph; finds symbols to refuse, and better hints.

    Args:
        module: the graph; left as it is.
        places: of symbols; see `Paddable`.
        refused: symbols that are not padded, with the reasons; more are added.
        hints: the padded dimensions of results whose rows are the same, by name.
        memory: where the graph's arguments are.
        checks_positions: those that padded operators take are checked.
        following: see `Paddable`; `compat.expression` writes none of these symbols.

    Attributes:
        better: hints that this walk found to be missing.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        places: Mapping[Symbol, Sequence[tuple[int, int | None]]],
        refused: dict[Symbol, str],
        hints: Mapping[str, PaddedDims],
        memory: PaddingMemory = HOST,
        *,
        checks_positions: bool = False,
        following: Mapping[Symbol, Size] | None = None,
    ) -> None:
        self._module = module
        self._checks_positions = checks_positions
        self._places = places
        self._refused = refused
        self._hints = hints
        self._following = following or {}
        own = places.keys() - self._following.keys()
        self._symbols = frozenset(symbol for symbol in own if symbol not in refused)
        self._graph = fx.Graph()
        self._emission = Emission(self._graph, self._symbols, places, memory.device)
        self._fill = memory.fill
        self._known: dict[fx.Node, TensorPadding] = {}
        self._several: dict[fx.Node, list[TensorPadding]] = {}
        self._checks: list[fx.Node] = []
        self._equal: list[tuple[Size, Size]] = list(self._following.items())
        self._growing: list[Size] = []
        self._positive: list[Size] = []
        self._placeholders: list[fx.Node] = []
        self._alike: list[fx.Node] = []
        self._written: list[int] = []
        self._are_sizes: set[Symbol] = set()
        self._unknown: set[fx.Node] = set()
        self.better: dict[str, dict[int, Extent]] = {}

    def run(self) -> Paddable:
        """The padded form; it counts only where nothing new was refused and no hint was missing."""
        outputs: Sequence[Any] = ()
        for node in self._module.graph.nodes:
            for dim, size in symbolic_sizes(compat.promise(node)):
                if dim is not None:
                    self._are_sizes |= free_symbols(size)
                    if compat.subtracted_symbols(size) & self._symbols:
                        equal = dict(
                            equal_symbols(size, self._symbols, self._places, self._placeholders)
                        )
                        self._equal += equal.items()
                        falling = compat.falling_symbols(size) - equal.keys()
                        self._refuse(falling, "a size falls as it grows", node)
                        self._growing.append(size)
            if node.op == "output":
                outputs = node.args[0]
                results = self._judge_results(outputs)
                self._graph.output(self._emission.mapped(tuple(outputs)))
            else:
                self._visit(node)
        numbers = {
            position: number
            for position, node in enumerate(self._placeholders)
            if depends(number := number_of(node), self._symbols)
        }
        made = Paddable(
            module=fx.GraphModule(self._module, _without_unused_numbers(self._graph)),
            checks=tuple(self._checks),
            symbols=tuple(symbol for symbol in self._places if symbol in self._symbols),
            places=self._places,
            arguments=self._layouts(),
            written=tuple(self._written),
            numbers=numbers,
            given=tuple(self._emission.given),
            results=results,
            equal=tuple(self._equal),
            following=compat.solved(self._equal, self._symbols, self._following),
            growing=tuple(dict.fromkeys(self._growing)),
            positive=tuple(dict.fromkeys(self._positive)),
            may_raise=self._emission.may_raise,
            refusals={
                item: why for item, why in self._refused.items() if why and item in self._are_sizes
            },
            extents={node.name: rows.dims for node, rows in self._known.items() if rows.dims},
        )
        if not all(free_symbols(size) <= self._places.keys() for size in made.sizes()):
            self._refuse(self._symbols, "a size depends on one that arguments do not have", node)
        return made

    # -- nodes -------------------------------------------------------------------------------------

    def _visit(self, node: fx.Node) -> None:
        emission = self._emission
        emission.begin(node)
        if node.op == "placeholder":
            self._placeholders.append(node)
            emission.placeholder(node)
            self._judge_placeholder(node)
        elif nodes.is_check(node) and self._padded(node):
            # Evaluated with the sizes of the call.
            self._checks.append(node)
            if not self._symbols_at(node) <= set(self._places):
                self._refuse(
                    self._symbols_at(node), "it is checked with a number that is not one", node
                )
        elif node.target is operator.getitem:
            self._take(node)
        elif node.op == "call_function" and not nodes.is_size_computation(node):
            self._judge(node)
        else:
            emission.set(node, emission.copy(node))

    def _judge_placeholder(self, node: fx.Node) -> None:
        promise = compat.promise(node)
        if not isinstance(promise, torch.Tensor):
            return
        hint = self._hints.get(node.name, {})
        dims = {}
        for dim, size in symbolic_sizes(promise):
            assert dim is not None
            if depends(size, self._symbols):
                known = hint.get(dim, ())
                same = known and compat.is_same_size(product(known), size)
                dims[dim] = known if same else extent_of(size)
        self._known[node] = TensorPadding(dims, self._fill)
        if dims and SymbolicLayout.of(node, dims, dense=True) is None:
            self._refuse(self._symbols_of(dims), "the bridge cannot lay out the tensor", node)

    def _take(self, node: fx.Node) -> None:
        source, index = node.args
        assert isinstance(source, fx.Node)
        assert isinstance(index, int)
        if source in self._several:
            self._known[node] = self._several[source][index]
        elif source in self._unknown:
            self._unknown.add(node)
        made = self._emission[source]
        self._emission.set(
            node, made[index] if isinstance(made, list) else self._emission.copy(node)
        )

    def _judge(self, node: fx.Node) -> None:
        emission = self._emission
        if not self._padded(node):
            emission.set(node, emission.copy(node))
            return
        if self._symbols_at(node) & self._refused.keys() & self._symbols or any(
            item in self._unknown for item in node.all_input_nodes
        ):
            # Judged by the next walk, without the symbols that this one refuses.
            self._unknown.add(node)
            emission.set(node, emission.copy(node))
            return
        try:
            applied = apply(
                node,
                rule_of(node.target),
                self._symbols,
                self._known,
                self._hints.get(node.name),
                self._suggest,
            )
            made = None if applied is None else self._emit(node, applied)
        except MixesRows as mixing:
            self._refuse(self._unpaddable_symbols(node), str(mixing), node)
        except Exception as error:
            # An error in a rule must only prevent padding, not fail the model.
            reason = f"its rule failed: {type(error).__name__}: {error}"
            self._refuse(self._symbols_at(node), reason, node)
        else:
            if applied is not None:
                emission.set(node, made)
                self._note(node, applied)
                if is_mutation(node):
                    self._write(node, applied)
                return
        # The walk goes on to find what else there is to refuse; what it makes is not used.
        self._unknown.add(node)
        emission.set(node, emission.copy(node))

    def _write(self, node: fx.Node, applied: Applied) -> None:
        """An argument that the graph writes into: its padded copy gets the value."""
        argument = node.all_input_nodes[0]
        if argument.op == "placeholder" and all(
            step.node is not argument for step in applied.moved
        ):
            self._written.append(self._placeholders.index(argument))
        else:
            self._refuse(self._symbols_at(node), "it is written into", node)

    def _note(self, node: fx.Node, applied: Applied) -> None:
        self._several[node] = applied.results
        if applied.use.alike:
            self._alike.append(node)
        if not isinstance(compat.promise(node), (tuple, list)):
            self._known[node] = applied.results[0]
        self._equal += applied.use.equal
        self._positive += applied.use.positive

    def _suggest(self, one: Extent, other: Extent) -> bool:
        """Note hints: how dimensions may be merged to fit those that they are combined with."""
        found = False
        for whole, parts in ((one, other), (other, one)):
            if len(whole) > 1 or not compat.is_same_size(product(parts), product(whole)):
                continue
            for node in (*self._placeholders, *self._alike):
                for dim, extent in self._known.get(node, NOT_PADDED).dims.items():
                    if extent == whole and dim not in self._hints.get(node.name, {}):
                        self.better.setdefault(node.name, {})[dim] = parts
                        found = True
        return found

    def _unpaddable_symbols(self, node: fx.Node) -> set[Symbol]:
        """The symbols that alone could not be padded because of a node; all where each could."""
        met = self._symbols_at(node) & self._symbols
        found = set()
        for symbol in met if len(met) > 1 else ():
            known = {
                item: TensorPadding(
                    {dim: one for dim, one in rows.dims.items() if _depends_on(one, symbol)}
                )
                for item in node.all_input_nodes
                if (rows := self._known.get(item)) is not None
            }
            try:
                apply(node, rule_of(node.target), frozenset([symbol]), known)
            except Exception:
                found.add(symbol)
        return found or met

    def _emit(self, node: fx.Node, applied: Applied) -> Any:
        emission, use = self._emission, applied.use
        for step in applied.moved:
            step.emit(emission)
        for item, (number, dims) in use.fills.items():
            rows, promise = use.rows(item), compat.promise(item)
            made = emission.filled(
                emission[item],
                {dim: rows.dims[dim] for dim in dims},
                promise.dim(),
                number,
                promise.dtype,
            )
            emission.change(item, made)
        checked = not self._checks_positions or positions.check(emission, node, applied)
        made = emission.copy(node) if use.emit is None else use.emit(emission)
        if isinstance(made, fx.Node) and checked:
            mark_checked(made)
        if isinstance(made, fx.Node) and isinstance(compat.promise(node), torch.Tensor):
            made.meta[PROMISED] = use.shape(node)
        return made

    def _padded(self, node: fx.Node) -> bool:
        """Whether a node reads or makes padded tensors, or numbers that depend on padded sizes."""
        if any(self._known.get(item, NOT_PADDED).dims for item in node.all_input_nodes):
            return True
        promises = [compat.promise(item) for item in (node, *node.all_input_nodes)]
        return any(
            depends(size, self._symbols)
            for promise in promises
            for _, size in symbolic_sizes(promise)
        )

    def _symbols_at(self, node: fx.Node) -> set[Symbol]:
        """Symbols in what a node takes and makes."""
        promises = [compat.promise(item) for item in (node, *node.all_input_nodes)]
        found = {
            symbol
            for promise in promises
            for _, size in symbolic_sizes(promise)
            for symbol in free_symbols(size)
        }
        for item in node.all_input_nodes:
            found |= self._symbols_of(self._known.get(item, NOT_PADDED).dims)
        return found

    def _symbols_of(self, dims: PaddedDims) -> set[Symbol]:
        return {
            symbol for extent in dims.values() for size in extent for symbol in free_symbols(size)
        }

    def _refuse(self, symbols: Iterable[Symbol], reason: str, node: fx.Node) -> None:
        name = compat.label(node.target) if node.op == "call_function" else ""
        why = str(FallbackReason(name, reason, "refused", source_line(node)))
        for symbol in symbols:
            if symbol in self._symbols:
                self._refused.setdefault(symbol, why)

    # -- arguments and results ---------------------------------------------------------------------

    def _layouts(self) -> dict[int, SymbolicLayout]:
        found = {}
        for position, node in enumerate(self._placeholders):
            dims = self._known.get(node, NOT_PADDED).dims
            layout = SymbolicLayout.of(node, dims, dense=True) if dims else None
            if layout is not None:
                found[position] = layout
        return found

    def _judge_results(self, outputs: Sequence[Any]) -> dict[int, SymbolicLayout | Size | int]:
        found: dict[int, SymbolicLayout | Size | int] = {}
        for index, node in enumerate(outputs):
            if not isinstance(node, fx.Node):
                continue
            dims = self._known.get(node, NOT_PADDED).dims
            if depends(number := number_of(node), self._symbols):
                found[index] = number
            elif node.op == "placeholder":
                if dims:
                    found[index] = self._placeholders.index(node)
            elif isinstance(compat.promise(node), torch.Tensor) and node.op == "call_function":
                # The padded graph may compute it with other operators, so that it lies otherwise.
                known = self._are_sizes & self._places.keys()
                layout = SymbolicLayout.of_result(node, dims, known)
                if layout is not None:
                    found[index] = layout
                elif dims:
                    reason = "the bridge cannot lay out the tensor"
                    self._refuse(self._symbols_of(dims), reason, node)
        return found


def _depends_on(extent: Extent, symbol: Symbol) -> bool:
    """Whether a factor depends on a symbol."""
    return any(depends(factor, (symbol,)) for factor in extent)


def _without_unused_numbers(graph: fx.Graph) -> fx.Graph:
    """A graph without calculations whose results nothing reads."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and nodes.is_size_computation(node):
            graph.erase_node(node)
    return graph
