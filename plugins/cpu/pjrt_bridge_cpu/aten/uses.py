"""Which calls may be used with a client, and the lowerings that write them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop.lowering.api import Lowering
from pjrt_bridge_cpu.aten import (
    as_eager,
    attention,
    convolution,
    findings,
    is_off,
    products,
    rows,
    rules,
)
from pjrt_bridge_cpu.aten.library import connect
from pjrt_bridge_cpu.aten.rules import Changes, KernelRule, UsableKernels

RULES: Mapping[str, KernelRule] = {
    **as_eager.RULES,
    **attention.RULES,
    **convolution.RULES,
    **products.RULES,
    **rows.RULES,
}
"""By operator of a graph."""


def use_of(client: Client) -> UsableKernels | None:
    """Writes calls into programs for a client; None where its plugin cannot make them."""
    library = client.plugin.library
    if is_off() or library is None or connect(client):
        return None
    changes = Changes(partial(findings.version, library), partial(findings.on_change, library))
    return UsableKernels(
        partial(findings.is_usable, library), partial(findings.measured, library), changes
    )


def lowerings(use: UsableKernels) -> dict[str, Lowering]:
    """The lowerings of all rules."""
    return rules.lowerings(RULES, use)
