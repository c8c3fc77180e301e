"""An ExportedModel of a program that comes with its types alone: names and nesting are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.exported.interface import (
    Argument,
    Interface,
    Slot,
    TensorLeaf,
    Weight,
    WeightKind,
)
from pjrt_bridge.exported.model import ExportedModel
from pjrt_bridge.exported.specialization import Specialization
from pjrt_bridge.exported.tree import Tree
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.wrong_arguments import checked, wrong


@checked
def of_program(
    program: Program,
    *,
    exporter: str,
    weights: Mapping[int, tuple[str, Any]] | None = None,
    names: Sequence[str] | None = None,
    outputs: Tree | None = None,
    kind: WeightKind = "parameter",
) -> ExportedModel:
    """A model of a program, whose parameters are weights or arguments.

    Args:
        program: runs it.
        exporter: what made the program.
        weights: for indices of parameters, a name and an array.
        names: of the other parameters, in order; `input_0`, `input_1`, ... by default.
        outputs: nesting of the results; by default one result is given as it is, several as a
            tuple.
        kind: of the weights.

    Raises:
        ProgramError: a weight of another type than its parameter, or as many names as there are
            no arguments.
    """
    if not isinstance(program, Program):
        raise ProgramError(wrong("of_program", program, "a Program"))
    kept = {index: (name, np.asarray(value)) for index, (name, value) in (weights or {}).items()}
    declared = program.signature.parameters
    for index, (name, array) in kept.items():
        found = (dtypes.from_numpy(array.dtype), array.shape)
        type = declared[index].type
        if found != (type.dtype, type.shape):
            raise ProgramError(
                f"program {program.name!r}: weight {name!r} (parameter {index}): found "
                f"{array.dtype}{list(array.shape)}, expected {type}"
            )
    free = [index for index in range(len(declared)) if index not in kept]
    named = [f"input_{at}" for at in range(len(free))] if names is None else list(names)
    if len(named) != len(free):
        raise ProgramError(
            f"program {program.name!r}: found {len(named)} names for {len(free)} arguments: {named}"
        )
    count = len(program.signature.results)
    leaves = tuple(Tree("leaf", leaf=at) for at in range(count))
    by_default = leaves[0] if count == 1 else Tree("tuple", items=leaves)
    slots = [
        Slot("weight", kept[index][0]) if index in kept else Slot("input", free.index(index))
        for index in range(len(declared))
    ]
    return ExportedModel(
        name=program.name,
        interface=Interface(
            tuple(Argument(name, Tree("leaf", leaf=at)) for at, name in enumerate(named)),
            tuple(
                TensorLeaf(name, declared[index].type.dtype, declared[index].type.shape)
                for name, index in zip(named, free, strict=True)
            ),
            outputs or by_default,
        ),
        weights={
            name: Weight(kind, declared[index].type.dtype, array.shape, name)
            for index, (name, array) in kept.items()
        },
        tensors=dict(kept.values()),
        specializations=(
            Specialization(
                program,
                tuple(slots),
                (None,) * count,
                tuple(Slot("result", at) for at in range(count)),
                {},
            ),
        ),
        exporter=exporter,
        symbols={},
    )
