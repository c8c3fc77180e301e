"""One program of an exported model, and what goes in and out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pjrt_bridge.exported.checks import Check
from pjrt_bridge.exported.interface import Slot
from pjrt_bridge.exported.parts import Part, SplitProgram
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType


@dataclass(frozen=True)
class Specialization:
    """A program for one choice of the symbolic sizes, and what goes in and out.

    Attributes:
        program: row-major parameters and results; whole, or in parts.
        parameters: for each parameter what it is given.
        updates: for each result the weight or input that it is the new value of, or None.
        outputs: for each leaf of the model's results what it is.
        sizes: of the symbols; empty where there are none.
        checks: what has to hold of each call.
    """

    program: Program | SplitProgram
    parameters: tuple[Slot, ...]
    updates: tuple[Slot | None, ...]
    outputs: tuple[Slot, ...]
    sizes: Mapping[str, int]
    checks: tuple[Check, ...] = ()

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The type of each parameter."""
        if isinstance(self.program, SplitProgram):
            return self.program.parameters
        return tuple(parameter.type for parameter in self.program.signature.parameters)

    @property
    def results(self) -> int:
        """How many results the program has."""
        if isinstance(self.program, SplitProgram):
            return len(self.program.results)
        return len(self.program.signature.results)

    @property
    def format(self) -> int:
        """The oldest format of a manifest that can hold it; see `manifest.FORMAT`."""
        if isinstance(self.program, SplitProgram):
            return 3
        return 2 if self.checks else 1

    @property
    def device_programs(self) -> tuple[Program, ...]:
        """The programs that a device runs: the whole, or its device parts, in running order."""
        if isinstance(self.program, Program):
            return (self.program,)
        return tuple(part.runs for part in self.program.parts if isinstance(part.runs, Program))

    @property
    def host_parts(self) -> tuple[Part, ...]:
        """The parts that frameworks run."""
        if isinstance(self.program, Program):
            return ()
        return tuple(part for part in self.program.parts if not part.on_device)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All that a call reads, looks at or writes."""
        updates = (slot for slot in self.updates if slot is not None)
        looked_at = (check.value for check in self.checks)
        return (*self.parameters, *updates, *self.outputs, *looked_at)

    def shapes(self) -> dict[int, tuple[int, ...]]:
        """The shape of each input that the program reads, by index of the leaf."""
        return {
            slot.of: type.shape
            for slot, type in zip(self.parameters, self.types, strict=True)
            if slot.kind == "input"
        }
