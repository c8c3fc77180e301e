"""Models as StableHLO that outlive their process, whatever framework they come from.

    model = ExportedModel.load("folder")      # every file is checked, weights are mapped
    on_device = model.load_on(client)         # weights are put once
    results = on_device(x, mask=m)            # as the exported function was called; Buffers
    model.save("other")

An exporter makes an `ExportedModel` of its parts: an `Interface` (arguments by name with the `Tree`
of each, the leaves, the nesting of the results), `Weight`s with their arrays, and one
`Specialization` (a Program and a `Slot` for each parameter and result) for each choice of symbolic
sizes. `of_program` makes one of a Program alone. Nothing here knows a framework; a `SplitProgram`
has parts that one runs on the host, and only a model with such parts imports it.

What cannot be read raises `errors.SavedModelError`; calls that do not fit, `SignatureMismatch`.
"""

from pjrt_bridge.exported.building import of_program
from pjrt_bridge.exported.checks import Check
from pjrt_bridge.exported.interface import (
    Argument,
    ConstantLeaf,
    Interface,
    Slot,
    TensorLeaf,
    Weight,
)
from pjrt_bridge.exported.loaded import LoadedModel
from pjrt_bridge.exported.model import ExportedModel
from pjrt_bridge.exported.parts import HostPart, Part, SplitProgram
from pjrt_bridge.exported.specialization import Specialization
from pjrt_bridge.exported.tree import Tree

__all__ = [
    "Argument",
    "Check",
    "ConstantLeaf",
    "ExportedModel",
    "HostPart",
    "Interface",
    "LoadedModel",
    "Part",
    "Slot",
    "Specialization",
    "SplitProgram",
    "TensorLeaf",
    "Tree",
    "Weight",
    "of_program",
]
