"""From a captured graph to programs; everything that does not lower is reported at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import fx

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.exported import Check, Specialization
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.stablehlo.composites import Composite
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.torch_interop.emit.lookup import using
from pjrt_bridge.torch_interop.exporting.assertions import assertions_of
from pjrt_bridge.torch_interop.exporting.capture import CapturedGraph
from pjrt_bridge.torch_interop.exporting.emission import ArgumentSlots, emit_whole
from pjrt_bridge.torch_interop.exporting.splitting import emit_in_parts
from pjrt_bridge.torch_interop.lowering.foreign import portable_but_for
from pjrt_bridge.torch_interop.lowering.registry import Lowering
from pjrt_bridge.torch_interop.passes.functionalize_rng import DrawnKeys
from pjrt_bridge.torch_interop.passes.pipeline import PassContext, rewrite
from pjrt_bridge.torch_interop.placement.predicate import Placement
from pjrt_bridge.torch_interop.placement.refusals import refused

CONTEXT = PassContext("exported", refused=refused)
"""What passes are told of exported models."""


class KeptComposites(Kernels):
    """The portable kernels of programs in which all composites stay."""

    def takes(self, composite: Composite) -> bool:
        """All of them."""
        return True


@dataclass(frozen=True)
class Lowered:
    """A specialization, and the tensors that its graph holds beside the model's weights."""

    specialization: Specialization
    held: Mapping[str, np.ndarray[Any, Any]]


def lift_random_keys(
    module: fx.GraphModule, kernels: Kernels | None = None
) -> tuple[fx.GraphModule, int]:
    """The graph with keys as last placeholders for what it draws, and how many there are.

    Marks become composites where the kernels, if any are given, take them.
    """
    context = replace(CONTEXT, kernels=kernels or Kernels())
    found = rewrite(module, context, "unsized")
    return found.module, sum(step.count for step in found.steps if isinstance(step, DrawnKeys))


def lower(
    captured: CapturedGraph,
    module: fx.GraphModule,
    keys: int,
    *,
    name: str,
    sizes: Mapping[str, int],
    split: bool = False,
    platform: str | None = None,
    kernels: Kernels | None = None,
) -> Lowered:
    """Emit the program of one choice of sizes.

    Args:
        captured: what the placeholders stand for.
        module: its graph, with keys, and with sizes that are numbers.
        keys: how many placeholders at the end are keys.
        name: of the program.
        sizes: that were put in.
        split: leave operators that do not lower to PyTorch.
        platform: that foreign functions are written for; None: for all.
        kernels: that lowerings emit with; the portable ones by default.

    Raises:
        NotExportable: operators that do not lower; the text lists all of them.
    """
    rewritten = rewrite(module, CONTEXT, "sized")
    module, assertions = rewritten.module, assertions_of(rewritten.steps)
    argument_slots = ArgumentSlots(captured, module, keys)
    portable, emitting = portable_but_for(platform), kernels or Kernels()

    def find(name: str) -> Lowering | None:
        return using(emitting, portable(name))

    reasons = Placement(find).fallback_reasons(module.graph)
    if reasons and split:
        made = emit_in_parts(module, argument_slots, reasons, name, find)
    elif reasons:
        # Checks of numbers come after what made the numbers.
        told = [reason for reason in reasons.values() if reason.kind != "small"]
        raise not_lowerable(told or list(reasons.values()), name)
    else:
        made = emit_whole(module, argument_slots, name, find)
    count = len(made.outputs) - len({found.looks_at for found in assertions})
    checks = (
        Check(made.outputs[count + found.looks_at], found.holds, found.message, found.source)
        for found in assertions
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


def not_lowerable(found: list[FallbackReason], name: str) -> NotExportable:
    """The error that lists what does not lower."""
    reasons = list(dict.fromkeys(map(str, found)))
    lines = "".join(f"\n  {reason}" for reason in reasons)
    return NotExportable(
        f"{name}: {len(reasons)} thing{'s' if len(reasons) > 1 else ''} in the model cannot become "
        f"StableHLO:{lines}\nexport(..., split=True) leaves these to PyTorch",
        reasons=reasons,
    )
