"""Composites in programs that others wrote: as a target computes them, all others inlined.

A composite is looked for by its name and version, also within the decompositions of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pjrt_bridge.stablehlo import bindings, composites
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.composing import compose
from pjrt_bridge.stablehlo.composites import OPERATION, Composite
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.program.program import Program


def resolved(program: Program, kernels: Kernels) -> Program:
    """A program whose composites are those that a target computes in its own way.

    Args:
        program: is not changed; given back where it has no composites.
        kernels: of the target.

    Raises:
        ProgramError: a decomposition that cannot be inlined.
    """
    if not program.may_have_composites:
        return program
    if _emits(kernels):
        program = Builder.rewritten(program, [{OPERATION: partial(_emitted, kernels)}])
    module = bindings.parse(program.bytecode(), f"program {program.name!r}")
    composites.inline(module, kernels.takes)
    return Program.from_module(module)


def _emits(kernels: Kernels) -> bool:
    """Whether a target has anything else for composites than the operation itself."""
    return bool(kernels.composites) and type(kernels).composite is not Kernels.composite


def _emitted(kernels: Kernels, b: Builder, written: Operation) -> Sequence[Value] | None:
    composite = Composite.of(written.handle)
    if not kernels.takes(composite):
        return None
    decomposition = partial(written.call, written.handle.attributes["decomposition"].value)
    return compose(kernels, b, composite, written.operands, decomposition, written.results)
