"""Arguments over one memory that a graph writes into.

AOTAutograd puts one tensor in their place, the base that they are views of, and makes the views
anew. What it traced holds for one base and one place of each view in it: Dynamo guards neither
(torch 2.13), so they are guarded here. What it traced of arguments that lay apart holds for such
alone, and is not guarded either: calls of a graph that writes into arguments look where they lie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from torch import fx
from torch._C._dynamo.guards import compute_overlapping_tensors
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import AttrSource, TensorProperty, TensorPropertySource
from torch._functorch._aot_autograd import runtime_wrappers
from torch._guards import DuplicateInputs, Source, TracingContext

from pjrt_bridge.torch_interop.compat.promises.values import storage_identity


class OverlappingArguments(Exception):
    """AOTAutograd makes no one tensor of arguments in one memory that a graph writes into."""


@dataclass
class WrittenArguments:
    """What AOTAutograd knows of the arguments that a graph writes into.

    Attributes:
        count: of all arguments that AOTAutograd sees; it leaves out those that are given twice.
        positions: of those that the graph writes into.
        merged: positions of those that are made views of one tensor.
        is_trained: whether the graph's gradients are computed.
    """

    count: int = 0
    positions: list[int] = field(default_factory=list)
    merged: list[int] = field(default_factory=list)
    is_trained: bool = False


@contextmanager
def watched_arguments(found: WrittenArguments) -> Iterator[None]:
    """While AOTAutograd traces a graph: which arguments are written into, and which are merged.

    Args:
        found: takes it.

    Raises:
        OverlappingArguments: it does not do that for several element types, nor where autograd
            knows some as views and others not. Where autograd knows none as a view, such as
            tensors that `set_` or `detach` gives, it does it, but for the size of a storage that
            it does not know, without versions, and with views that it cannot make anew.
    """
    wrappers: Any = runtime_wrappers
    merge = wrappers.merge_view_inputs

    def watched(config: Any, inputs: list[Any], names: Any, infos: list[Any], **kwargs: Any) -> Any:
        try:
            answer = merge(config, inputs, names, infos, **kwargs)
        except Exception as error:
            raise OverlappingArguments(str(error)) from error
        found.count = len(inputs)
        found.is_trained = not kwargs["is_inference"]
        found.positions = [at for at, info in enumerate(infos) if info.mutates_data]
        found.merged = [
            at for at, place in enumerate(answer[2] or ()) if not isinstance(place, int)
        ]
        merged = [inputs[at] for at in found.merged]
        known = {storage_identity(item) for item in merged if item._base is not None}
        if any(storage_identity(item) not in known for item in merged):
            raise OverlappingArguments("autograd knows none of them as a view")
        return answer

    wrappers.merge_view_inputs = watched
    try:
        yield
    except AssertionError as error:
        # It counts (torch 2.13) the gradients of several that are written into otherwise.
        if found.merged:
            raise OverlappingArguments(str(error)) from error
        raise
    finally:
        wrappers.merge_view_inputs = merge


def guard_places(graph: fx.GraphModule, written: WrittenArguments) -> None:
    """Have a graph compiled again where arguments lie otherwise in the tensor that they are of.

    Args:
        graph: from Dynamo, while it is compiled.
        written: as `watched_arguments` finds them.
    """
    context = TracingContext.try_get()
    if context is None or not written.merged:
        return
    guards = context.guards_context.dynamo_guards
    bases: dict[int | None, Source] = {}
    for node in _merged(graph, written):
        example, source = node.meta["example_value"], node.meta["grapharg"].source
        base = AttrSource(source, "_base")
        for place in _of_place(source, example):
            guards.add(place.make_guard(GuardBuilder.EQUALS_MATCH))
        if example._base is None:
            guards.add(base.make_guard(GuardBuilder.NONE_MATCH))
            base = source
        else:
            guards.add(base.make_guard(GuardBuilder.NOT_NONE_MATCH))
            for item in _of_tensor(base, example._base):
                guards.add(item.make_guard(GuardBuilder.EQUALS_MATCH))
        first = bases.setdefault(storage_identity(example), base)
        if first is not base:
            context.guards_context.aotautograd_guards.append(DuplicateInputs(first, base))


def returned_as_given(
    compiled: Callable[..., Any], graph: fx.GraphModule, written: WrittenArguments
) -> Callable[..., Any]:
    """A compiled graph whose results that are merged arguments are these, and no views of them.

    Args:
        compiled: the graph, compiled.
        graph: from Dynamo, of which each argument is one of `compiled`.
        written: as `watched_arguments` finds them.
    """
    inputs = graph.graph.find_nodes(op="placeholder")
    if written.count != len(inputs):
        return compiled
    # Dynamo has one fake tensor for an argument and for what a write in place gives.
    examples = {id(inputs[at].meta.get("example_value")): at for at in written.merged}
    (end,) = graph.graph.find_nodes(op="output")
    found = [
        (place, examples[id(item.meta["example_value"])])
        for place, item in enumerate(end.args[0])
        if isinstance(item, fx.Node) and id(item.meta.get("example_value")) in examples
    ]
    if not found:
        return compiled

    def call(*args: Any) -> list[Any]:
        results = list(compiled(*args))
        for place, at in found:
            results[place] = args[at]
        return results

    return call


def apart_or(
    otherwise: Callable[[], Callable[..., Any]],
    compiled: Callable[..., Any],
    graph: fx.GraphModule,
    written: WrittenArguments,
) -> Callable[..., Any]:
    """A compiled graph for arguments that lie apart where it was compiled for such.

    Args:
        otherwise: gives what is called where others overlap with what the graph writes into, or
            share its version and gradients are computed.
        compiled: the graph, compiled.
        graph: from Dynamo, of which each argument is one of `compiled`.
        written: as `watched_arguments` finds them.
    """
    if not written.positions:
        return compiled
    inputs = graph.graph.find_nodes(op="placeholder")
    tensors = [
        at
        for at, node in enumerate(inputs)
        if isinstance(node.meta.get("example_value"), torch.Tensor)
    ]
    known = written.count == len(inputs)
    changed = set(written.positions if known else tensors)
    together = set(written.merged if known else ())
    static = {at for at in tensors if _is_static(inputs[at])}

    def matters(pair: tuple[int, int]) -> bool:
        # Parameters and buffers of modules are taken to lie apart, as AOTAutograd does.
        return not (
            changed.isdisjoint(pair) or static.issuperset(pair) or together.issuperset(pair)
        )

    loose = set(tensors) - static
    compared = sorted(changed.union(loose if changed <= static else tensors))
    if not loose or together.issuperset(compared):
        return compiled
    chosen: list[Callable[..., Any]] = []

    def call(*args: Any) -> Any:
        storages = [storage_identity(args[at]) for at in compared]
        if len(set(storages)) == len(storages):
            return compiled(*args)
        sharing: dict[int, list[int]] = {}
        for at, storage in zip(compared, storages, strict=True):
            if storage is not None:
                sharing.setdefault(storage, []).append(at)
        pairs = (pair for group in sharing.values() for pair in combinations(group, 2))
        if not any(
            _meet(args[pair[0]], args[pair[1]], written.is_trained)
            for pair in pairs
            if matters(pair)
        ):
            return compiled(*args)
        if not chosen:
            chosen.append(otherwise())
        return chosen[0](*args)

    return call


def _meet(one: torch.Tensor, two: torch.Tensor, is_trained: bool) -> bool:
    """Whether a write into one of two tensors in a storage changes the other, or its version."""
    if compute_overlapping_tensors([one, two], symbolic=False):
        return True
    # Autograd refuses a saved argument whose version has changed, and AOTAutograd writes into
    # arguments after it has saved others.
    return is_trained and _base(one) is _base(two)


def _base(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that autograd knows it as a view of; itself where that is none."""
    return tensor if tensor._base is None else tensor._base


def _is_static(node: fx.Node) -> bool:
    """Whether an input of Dynamo's graph is a parameter, a buffer or marked as static."""
    return bool(node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))


def _merged(graph: fx.GraphModule, written: WrittenArguments) -> list[fx.Node]:
    """The inputs of Dynamo's graph that are merged; at least these, if it is not known which."""
    inputs = graph.graph.find_nodes(op="placeholder")
    tensors = [
        node
        for node in inputs
        if isinstance(node.meta.get("example_value"), torch.Tensor) and "grapharg" in node.meta
    ]
    if written.count == len(inputs):
        return [inputs[at] for at in written.merged if inputs[at] in tensors]
    storages = Counter(storage_identity(node.meta["example_value"]) for node in tensors)
    return [node for node in tensors if storages[storage_identity(node.meta["example_value"])] > 1]


def _of_tensor(source: Source, tensor: torch.Tensor) -> Iterator[Source]:
    """What is known of a base."""
    yield AttrSource(source, "dtype")
    yield AttrSource(source, "requires_grad")
    yield AttrSource(source, "ndim")
    for kind, numbers in (
        (TensorProperty.SIZE, tensor.shape),
        (TensorProperty.STRIDE, tensor.stride()),
    ):
        for dim, number in enumerate(numbers):
            if type(number) is int:
                yield TensorPropertySource(source, kind, dim)
    yield from _of_place(source, tensor)


def _of_place(source: Source, tensor: torch.Tensor) -> Iterator[Source]:
    """Where a tensor begins, if it is not a number that changes."""
    if type(tensor.storage_offset()) is int:
        yield TensorPropertySource(source, TensorProperty.STORAGE_OFFSET)
