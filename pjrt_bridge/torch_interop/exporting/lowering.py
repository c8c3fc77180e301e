"""From a captured graph to programs; everything that does not lower is reported at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.exported import Check, Specialization
from pjrt_bridge.report.fallback_reason import Obstacle
from pjrt_bridge.torch_interop.exporting.assertions import Assertion
from pjrt_bridge.torch_interop.exporting.capture import Captured
from pjrt_bridge.torch_interop.exporting.emission import Borders, whole
from pjrt_bridge.torch_interop.exporting.splitting import in_parts
from pjrt_bridge.torch_interop.lowering import registry as portable
from pjrt_bridge.torch_interop.passes.functionalize_rng import functionalize_rng, lift_keys
from pjrt_bridge.torch_interop.placement.predicate import Placement


@dataclass(frozen=True)
class Lowered:
    """A specialization, and the tensors that its graph holds beside the model's weights."""

    specialization: Specialization
    held: Mapping[str, np.ndarray[Any, Any]]


def lift_random_keys(module: fx.GraphModule) -> tuple[fx.GraphModule, int]:
    """The graph with the keys of its random operators as last placeholders, and their number."""
    functionalize_rng(module.graph)
    count = lift_keys(module.graph)
    module.recompile()
    return module, count


def lower(
    captured: Captured,
    module: fx.GraphModule,
    keys: int,
    *,
    name: str,
    sizes: Mapping[str, int],
    assertions: Sequence[Assertion] = (),
    split: bool = False,
) -> Lowered:
    """Emit the program of one choice of sizes.

    Args:
        captured: what the placeholders stand for.
        module: its graph, with keys, and with sizes that are numbers; its last results are what the
            assertions read.
        keys: how many placeholders at the end are keys.
        name: of the program.
        sizes: that were substituted.
        assertions: that were moved out of the graph.
        split: leave operators that do not lower to PyTorch.

    Raises:
        NotExportable: operators that do not lower; the text lists all of them.
    """
    borders = Borders(captured, module, keys)
    obstacles = Placement(portable.find_lowering).obstacles(module.graph)
    if obstacles and split:
        made = in_parts(module, borders, obstacles, name)
    elif obstacles:
        # A check of a number is an obstacle only because what computes the number is one.
        told = [obstacle for obstacle in obstacles.values() if obstacle.kind != "small"]
        raise not_lowerable(told or list(obstacles.values()), name)
    else:
        made = whole(module, borders, name)
    count = len(made.outputs) - len(assertions)
    checks = (
        Check(value, found.holds, found.message, found.source)
        for found, value in zip(assertions, made.outputs[count:], strict=True)
    )
    return Lowered(
        Specialization(
            made.program,
            made.parameters,
            made.updates,
            made.outputs[:count],
            dict(sizes),
            tuple(checks),
        ),
        made.held,
    )


def not_lowerable(obstacles: list[Obstacle], name: str) -> NotExportable:
    """The error that lists what does not lower."""
    reasons = list(dict.fromkeys(map(str, obstacles)))
    lines = "".join(f"\n  {reason}" for reason in reasons)
    return NotExportable(
        f"{name}: {len(reasons)} thing{'s' if len(reasons) > 1 else ''} in the model cannot become "
        f"StableHLO:{lines}\nexport(..., split=True) leaves these to PyTorch",
        reasons=reasons,
    )
