"""From a graph that lowers to a program of an exported model, with its parameters and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx

from pjrt_bridge.exported import Slot, SplitProgram
from pjrt_bridge.mixed.adapter import Computed, SegmentInput
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.torch_interop import compat, precision
from pjrt_bridge.torch_interop.emit.node_lowering import Lookup
from pjrt_bridge.torch_interop.emit.program import Emitted, emit
from pjrt_bridge.torch_interop.exporting.capture import COPY, CapturedGraph
from pjrt_bridge.torch_interop.tensors import array_over, in_memory, row_major_spec

INLINED = 1024
"""Bytes up to which a constant of the model's code becomes part of the program."""


@dataclass(frozen=True)
class ModelProgram:
    """A program, and how its parameters and results map to the model.

    Attributes:
        program: whole, or in parts.
        parameters: for each parameter what is passed to it.
        updates: for each result what it is the new value of.
        outputs: for each output of the graph what it is.
        held: tensors that the graph holds beside the model's weights.
    """

    program: Program | SplitProgram
    parameters: tuple[Slot, ...]
    updates: tuple[Slot | None, ...]
    outputs: tuple[Slot, ...]
    held: Mapping[str, np.ndarray[Any, Any]]


class ArgumentSlots:
    """The slots of a graph's arguments: inputs, weights and numbers.

    Args:
        captured: what the placeholders stand for.
        module: the graph.
        keys: how many placeholders at the end are keys.

    Attributes:
        constants: by position, those that become part of programs.
    """

    def __init__(self, captured: CapturedGraph, module: fx.GraphModule, keys: int) -> None:
        self._slots: list[Slot] = []
        for source in captured.sources:
            inputs = sum(slot.kind == "input" for slot in self._slots)
            weight = Slot("weight", source.name)
            self._slots.append(weight if source.is_weight else Slot("input", inputs))
        self._slots += [Slot("key", index) for index in range(keys)]
        # Arguments that are written into or returned stay arguments.
        kept = {
            used
            for node in module.graph.nodes
            if node.op == "output" or compat.operator_name(node.target) == COPY
            for used in node.all_input_nodes
        }
        placeholders = module.graph.find_nodes(op="placeholder")
        self.constants = {
            position: array_over(source.value)
            for position, source in enumerate(captured.sources)
            if source.kind == "constant"
            and source.value.nbytes <= INLINED
            and placeholders[position] not in kept
        }

    def slot(self, position: int) -> Slot:
        """The slot of the argument at a position."""
        return self._slots[position]


def emit_whole(
    module: fx.GraphModule, argument_slots: ArgumentSlots, name: str, find: Lookup
) -> ModelProgram:
    """One program, which writes new values of larger weights into their memory."""
    emitted = emitted_row_major(module, name, argument_slots.constants, find, in_place=True)
    held = held_by(emitted, "captured")
    bindings = emitted.bindings
    updates: list[Slot | None] = [None] * len(bindings.results)
    for target, index in bindings.updates:
        assert isinstance(target, SegmentInput)
        updates[index] = argument_slots.slot(target.position)
    outputs = []
    for output in bindings.outputs:
        if isinstance(output, Computed):
            outputs.append(Slot("result", output.result))
        elif isinstance(output, SegmentInput):
            outputs.append(argument_slots.slot(output.position))
        else:
            outputs.append(Slot("constant", output.value))
    return ModelProgram(
        emitted.program,
        (
            *(argument_slots.slot(position) for position in emitted.inputs),
            *(Slot("weight", name) for name in held),
        ),
        tuple(updates),
        tuple(outputs),
        held,
    )


def emitted_row_major(
    module: fx.GraphModule,
    name: str,
    constants: Mapping[int, np.ndarray[Any, Any]],
    find: Lookup,
    *,
    in_place: bool,
) -> Emitted:
    """A program whose parameters and results are row-major; `find` gives lowerings.

    It states how exact products are by torch's settings, as any plugin may be given it.
    """
    count = len(module.graph.find_nodes(op="placeholder"))
    return emit(
        module,
        find,
        name=name,
        in_place=in_place,
        argument_specs=dict.fromkeys(range(count), row_major_spec),
        result_spec=row_major_spec,
        constants=constants,
        precisions=precision.settings(),
    )


def held_by(emitted: Emitted, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors that a program takes after its arguments, by generated names."""
    return {
        f"{name}_{index}": array_over(in_memory(tensor, spec))
        for index, (tensor, spec) in enumerate(
            zip(emitted.captured, emitted.captured_specs, strict=True)
        )
    }
