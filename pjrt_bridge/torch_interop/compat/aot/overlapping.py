"""Arguments over one memory that a graph writes into.

AOTAutograd puts one tensor in their place, the base that they are views of, and makes the views
anew. What it traced holds for one base and one place of each view in it: Dynamo guards neither
(torch 2.13), so they are guarded here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import AttrSource, TensorProperty, TensorPropertySource
from torch._functorch._aot_autograd import runtime_wrappers
from torch._guards import DuplicateInputs, Source, TracingContext

from pjrt_bridge.torch_interop.compat.promises.values import storage_identity


class OverlappingArguments(Exception):
    """AOTAutograd makes no one tensor of arguments in one memory that a graph writes into."""


@dataclass
class MergedArguments:
    """Arguments that AOTAutograd makes views of one tensor.

    Attributes:
        count: of all arguments that AOTAutograd sees; it leaves out those that are given twice.
        positions: of those that are merged.
    """

    count: int = 0
    positions: list[int] = field(default_factory=list)


@contextmanager
def merged_arguments() -> Iterator[MergedArguments]:
    """While AOTAutograd traces a graph: which arguments it makes views of one tensor.

    Raises:
        OverlappingArguments: it does not do that for several element types, nor where autograd
            knows some as views and others not. Where autograd knows none as a view, such as
            tensors that `set_` or `detach` gives, it does it, but for the size of a storage that
            it does not know, without versions, and with views that it cannot make anew.
    """
    found = MergedArguments()
    wrappers: Any = runtime_wrappers
    merge = wrappers.merge_view_inputs

    def watched(config: Any, inputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        try:
            answer = merge(config, inputs, *args, **kwargs)
        except Exception as error:
            raise OverlappingArguments(str(error)) from error
        found.count = len(inputs)
        found.positions = [
            at for at, place in enumerate(answer[2] or ()) if not isinstance(place, int)
        ]
        merged = [inputs[at] for at in found.positions]
        known = {storage_identity(item) for item in merged if item._base is not None}
        if any(storage_identity(item) not in known for item in merged):
            raise OverlappingArguments("autograd knows none of them as a view")
        return answer

    wrappers.merge_view_inputs = watched
    try:
        yield found
    finally:
        wrappers.merge_view_inputs = merge


def guard_places(graph: fx.GraphModule, merged: MergedArguments) -> None:
    """Have a graph compiled again where arguments lie otherwise in the tensor that they are of.

    Args:
        graph: from Dynamo, while it is compiled.
        merged: as `merged_arguments` gives them.
    """
    context = TracingContext.try_get()
    if context is None or not merged.positions:
        return
    guards = context.guards_context.dynamo_guards
    bases: dict[int | None, Source] = {}
    for node in _merged(graph, merged):
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


def _merged(graph: fx.GraphModule, merged: MergedArguments) -> list[fx.Node]:
    """The inputs of Dynamo's graph that are merged; at least these, if it is not known which."""
    inputs = graph.graph.find_nodes(op="placeholder")
    tensors = [
        node
        for node in inputs
        if isinstance(node.meta.get("example_value"), torch.Tensor) and "grapharg" in node.meta
    ]
    if merged.count == len(inputs):
        return [inputs[at] for at in merged.positions if inputs[at] in tensors]
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
