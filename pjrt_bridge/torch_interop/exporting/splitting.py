"""A program in parts, where operators do not lower: PyTorch runs these on the host.

Programs have fixed sizes, so what has a size that depends on data runs on the host, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx

from pjrt_bridge import dtypes
from pjrt_bridge.errors import NotExportable
from pjrt_bridge.exported import Part, Slot, SplitProgram
from pjrt_bridge.mixed.adapter import Computed
from pjrt_bridge.mixed.partition import Segment
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop import compat, nodes
from pjrt_bridge.torch_interop.emit.node_lowering import Lookup
from pjrt_bridge.torch_interop.exporting.emission import (
    ArgumentSlots,
    ModelProgram,
    emitted_row_major,
    held_by,
)
from pjrt_bridge.torch_interop.host_parts import TorchPart
from pjrt_bridge.torch_interop.nodes import is_mutation, source_line
from pjrt_bridge.torch_interop.placement import split
from pjrt_bridge.torch_interop.tensors import type_of

FallbackReasons = Mapping[str, FallbackReason]
_Held = dict[int, tuple[str, np.ndarray[Any, Any]]]
"""Tensors that a graph holds itself, with their names, by the number of their value."""


def emit_in_parts(
    module: fx.GraphModule,
    argument_slots: ArgumentSlots,
    reasons: FallbackReasons,
    name: str,
    find: Lookup,
) -> ModelProgram:
    """A program in parts.

    Args:
        module: the graph; new values of arguments become values of their own in it.
        argument_slots: what its arguments are.
        reasons: for nodes that do not lower, by name, the reason.
        name: of the program.
        find: gives lowerings.

    Raises:
        NotExportable: an argument that no plugin can have, or a part that cannot be saved.
    """
    for node in module.graph.nodes:
        if node.name in reasons and (node.op == "placeholder" or is_mutation(node)):
            raise NotExportable(f"{name}: {node.name}: {reasons[node.name]}")
    _own_new_values(module.graph)
    found = split.split(module, {**_of_unknown_sizes(module.graph), **reasons})
    placeholders = module.graph.find_nodes(op="placeholder")
    parts, held = _parts(found, argument_slots, name, find)
    read = {value for part in parts for value in part.inputs}
    taken = [position for position in range(len(placeholders)) if position in read]
    results = [value for value in found.graph.outputs if value >= len(placeholders)]
    slots = {value: Slot("result", index) for index, value in enumerate(results)}
    slots |= {position: argument_slots.slot(position) for position in range(len(placeholders))}
    updates: list[Slot | None] = [None] * len(results)
    for position, index in found.mutations:
        updates[slots[found.graph.outputs[index]].of] = argument_slots.slot(position)
    types = [_type(placeholders[position], name) for position in taken]
    types += [TensorType(a.shape, dtypes.from_numpy(a.dtype)) for _, a in held.values()]
    return ModelProgram(
        _numbered(name, types, [*taken, *held], parts, results),
        (*map(argument_slots.slot, taken), *(Slot("weight", key) for key, _ in held.values())),
        tuple(updates),
        tuple(
            slots[found.graph.outputs[item]] if isinstance(item, int) else Slot("constant", item[0])
            for item in found.outputs
        ),
        dict(held.values()),
    )


def _own_new_values(graph: fx.Graph) -> None:
    """Make each new value of an argument a result of its own, in the shape of the argument."""
    copy = compat.operator("aten.copy.default")
    assert copy is not None
    taken: set[Any] = set()
    for node in filter(is_mutation, list(graph.nodes)):
        target, source = node.args[:2]
        old, new = compat.promise(target), compat.promise(source)
        alike = old.shape == new.shape and old.dtype == new.dtype
        if source.op == "placeholder" or source in taken or not alike:
            with graph.inserting_before(node):
                source = graph.call_function(copy, (target, source))
            source.meta["val"] = old
            node.update_arg(1, source)
        taken.add(source)


def _of_unknown_sizes(graph: fx.Graph) -> dict[str, FallbackReason]:
    """Nodes with sizes that only a call knows."""
    found = {}
    for node in graph.nodes:
        promises = map(compat.promise, (node, *node.all_input_nodes))
        if node.op == "call_function" and any(map(compat.is_symbolic, promises)):
            reason = "its sizes depend on data, and programs have fixed ones"
            if nodes.is_size_computation(node):
                reason = "it computes with a number that depends on data"
            label = nodes.label(node)
            found[node.name] = FallbackReason(label, reason, "data", source_line(node))
    return found


def _parts(
    found: split.Split, argument_slots: ArgumentSlots, name: str, find: Lookup
) -> tuple[list[Part], _Held]:
    """The parts, over the values of the split graph, and tensors that they hold as more values."""
    made = [value for segment in found.segments for value in segment.outputs]
    free = itertools.count(1 + max((*found.graph.inputs, *made), default=0))
    held: _Held = {}
    parts = []
    for index, (part, segment) in enumerate(zip(found.parts, found.segments, strict=True)):
        if part.on_device:
            one, tensors = _on_device(part, segment, argument_slots, f"{name}_{index}", find)
            numbered = {next(free): item for item in tensors.items()}
            one = replace(one, inputs=(*one.inputs, *numbered))
            held |= numbered
        else:
            one = Part(TorchPart.of(part.module), segment.inputs, segment.outputs)
        operators = split.operators(part.module.graph)
        parts.append(replace(one, operators=operators, fallback_reasons=part.fallback_reasons))
    return parts, held


def _on_device(
    part: split.Part, segment: Segment, argument_slots: ArgumentSlots, name: str, find: Lookup
) -> tuple[Part, dict[str, np.ndarray[Any, Any]]]:
    """A part on the device, and the tensors that its program takes after its inputs."""
    constants = {
        at: argument_slots.constants[position]
        for at, position in enumerate(part.arguments)
        if position in argument_slots.constants
    }
    emitted = emitted_row_major(part.module, name, constants, find, in_place=False)
    outputs = {}
    for value, output in zip(segment.outputs, emitted.bindings.outputs, strict=True):
        if not isinstance(output, Computed):
            raise NotExportable(
                f"{name}: a part of the model on the device gives {output}, expected tensors"
            )
        outputs[output.result] = value
    inputs = tuple(segment.inputs[at] for at in emitted.inputs)
    given = tuple(outputs[index] for index in range(len(emitted.bindings.results)))
    return Part(emitted.program, inputs, given), held_by(emitted, name)


def _type(node: fx.Node, name: str) -> TensorType:
    promise = compat.promise(node)
    if not isinstance(promise, torch.Tensor):
        raise NotExportable(f"{name}: argument {node.name!r} is a number in a part on the host")
    return type_of(promise)


def _numbered(
    name: str, types: list[TensorType], arguments: list[int], parts: list[Part], results: list[int]
) -> SplitProgram:
    """The program, with values that are numbered from the arguments on."""
    made = (value for part in parts for value in part.outputs)
    numbers = {value: number for number, value in enumerate([*arguments, *made])}

    def renumbered(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(numbers[value] for value in values)

    return SplitProgram(
        name,
        tuple(types),
        tuple(
            replace(part, inputs=renumbered(part.inputs), outputs=renumbered(part.outputs))
            for part in parts
        ),
        renumbered(tuple(results)),
    )
