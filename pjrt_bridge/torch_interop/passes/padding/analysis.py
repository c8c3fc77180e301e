"""Which symbols of a graph can be padded, and its padded form."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import torch
from torch import fx

from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.addressing import addresses_storage, sharing_storage
from pjrt_bridge.torch_interop.nodes import is_inserted, source_line
from pjrt_bridge.torch_interop.passes.functionalize_rng import Refused
from pjrt_bridge.torch_interop.passes.padding.extents import PaddedDims, Size, Symbol, is_symbol
from pjrt_bridge.torch_interop.passes.padding.memory import HOST, PaddingMemory
from pjrt_bridge.torch_interop.passes.padding.operators.strides import (
    ADDRESSES,
    reads_own_elements,
)
from pjrt_bridge.torch_interop.passes.padding.paddable import Paddable
from pjrt_bridge.torch_interop.passes.padding.promises import free_symbols, symbolic_sizes
from pjrt_bridge.torch_interop.passes.padding.rules import rule_of
from pjrt_bridge.torch_interop.passes.padding.walk import Walk


def find(
    module: fx.GraphModule,
    hints: Mapping[str, PaddedDims] | None = None,
    memory: PaddingMemory = HOST,
    *,
    checks_positions: bool = False,
    following: Mapping[Symbol, Size] | None = None,
    refused: Refused = lambda *_: False,
) -> Paddable:
    """The padded form of a functional graph.

    Args:
        module: the graph; left as it is.
        hints: the padded dimensions of arguments, by name, where they are known: a tensor that the
            forward graph saves may be merged of several.
        memory: where the arguments are.
        checks_positions: see `Walk`.
        following: see `Paddable`.
        refused: calls of any sizes. Padded graphs compute them with other operators.
    """
    places = _places(module.graph)
    names = _other_names(following or {}, places)
    of_arguments = {
        symbol: renamed
        for symbol, size in (following or {}).items()
        if symbol in places
        and free_symbols(renamed := compat.renamed(size, names)) <= places.keys()
        and renamed != symbol
    }
    known = {
        name: {
            dim: tuple(compat.renamed(factor, names) for factor in extent)
            for dim, extent in dims.items()
        }
        for name, dims in (hints or {}).items()
    }
    with compat.following(of_arguments):
        return _find(
            module, places, known, memory, of_arguments, refused, checks_positions=checks_positions
        )


def _other_names(following: Mapping[Symbol, Size], places: Container[Symbol]) -> dict[Symbol, Size]:
    """Symbols of the forward graph that no argument has, by one that is equal and that one has."""
    found: dict[Symbol, Size] = {}
    for symbol, size in following.items():
        if symbol in places and is_symbol(size) and size not in places:
            found.setdefault(size, symbol)
    return found


def _find(
    module: fx.GraphModule,
    places: Mapping[Symbol, Sequence[tuple[int, int | None]]],
    hints: Mapping[str, PaddedDims],
    memory: PaddingMemory,
    following: Mapping[Symbol, Size],
    refuses: Refused,
    *,
    checks_positions: bool,
) -> Paddable:
    # Sizes of ragged dimensions are names, with which nothing can be calculated.
    ragged = any(map(_is_ragged, module.graph.find_nodes(op="placeholder")))
    refused = (
        dict.fromkeys(places, "")
        if ragged
        else {**_addressed(module.graph), **_of_refused(module.graph, refuses)}
    )
    known = dict(hints)
    while True:
        walk = Walk(
            module,
            places,
            refused,
            known,
            memory,
            checks_positions=checks_positions,
            following=following,
        )
        before = len(refused)
        made = walk.run()
        if walk.better:
            known |= {name: {**known.get(name, {}), **dims} for name, dims in walk.better.items()}
        elif len(refused) == before:
            return made


def _addressed(graph: fx.Graph) -> dict[Symbol, str]:
    """The symbols in sizes of tensors around which an operator may read, with the reason."""
    found: dict[Symbol, str] = {}
    for node in filter(addresses_storage, graph.nodes):
        if reads_own_elements(node):
            continue
        why = FallbackReason(compat.label(node.target), ADDRESSES, "refused", source_line(node))
        for item in sharing_storage(node.all_input_nodes[0]):
            for _, size in symbolic_sizes(compat.promise(item)):
                found |= dict.fromkeys(free_symbols(size), str(why))
    return found


def _of_refused(graph: fx.Graph, refuses: Refused) -> dict[Symbol, str]:
    """The symbols in sizes of calls that PyTorch refuses, with the reason."""
    found: dict[Symbol, str] = {}
    for node in graph.nodes:
        if not isinstance(node.target, compat.OpOverload) or rule_of(node.target) is None:
            continue
        if is_inserted(node):
            continue
        values = {used: compat.promise(used) for used in node.all_input_nodes}
        symbols = {
            symbol
            for promise in (*values.values(), compat.promise(node))
            for _, size in symbolic_sizes(promise)
            for symbol in free_symbols(size)
        }
        if symbols and refuses(node.target, compat.substitute((node.args, node.kwargs), values)):
            why = "PyTorch refuses its element types"
            reason = FallbackReason(compat.label(node.target), why, "refused", source_line(node))
            found |= dict.fromkeys(symbols, str(reason))
    return found


def _is_ragged(node: fx.Node) -> bool:
    promise = compat.promise(node)
    sizes = promise.shape if isinstance(promise, torch.Tensor) else (promise,)
    return any(map(compat.is_ragged, sizes))


def _places(graph: fx.Graph) -> dict[Symbol, list[tuple[int, int | None]]]:
    places: dict[Symbol, list[tuple[int, int | None]]] = {}
    for position, node in enumerate(graph.find_nodes(op="placeholder")):
        for dim, size in symbolic_sizes(compat.promise(node)):
            if getattr(size, "is_symbol", False):
                places.setdefault(size, []).append((position, dim))
    return places
