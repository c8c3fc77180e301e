"""Recurrent layers along padded dimensions: batches, whose rows are apart, and steps of time."""

from __future__ import annotations

from typing import Any

from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import MixesRows, PaddedDims, product
from pjrt_bridge.torch_interop.passes.padding.rows import Use

_TIME, _BATCH = 0, 1


def scanned(use: Use) -> list[PaddedDims]:
    """The states of all steps."""
    return [_sequence(use, "given")] * len(use.results)


def scanned_backward(use: Use) -> list[PaddedDims]:
    """Gradients by what was given for all steps, by products, and by the first state."""
    found = _sequence(use, "outputs")
    for name in ("of_outputs", "of_cells", "cells", "saved"):
        use.same(found, use.dims(name))
    first = _of_states(found)
    return [found, found, first, first]


def _sequence(use: Use, name: str) -> PaddedDims:
    """The padded dimensions of (time, batch, width).

    Raises:
        MixesRows: the width is padded, or the weights.
    """
    found = use.dims(name)
    if not found.keys() <= {_TIME, _BATCH} or use.dims("weight") or use.dims("bias"):
        raise MixesRows("it multiplies along the dimension")
    for state in ("h", "c"):
        use.same(_of_states(found), use.dims(state))
    if _TIME in found:
        steps = found[_TIME]
        use.needs_prefix(steps)

        def emit(e: Emission) -> list[Any]:
            made = e.repeat(use.node, length=e.actual(product(steps)))
            return [e.item(made, at) for at in range(len(use.results))]

        use.emit = emit
    return found


def _of_states(sequence: PaddedDims) -> PaddedDims:
    """The padded dimensions of (batch, width)."""
    return {0: sequence[_BATCH]} if _BATCH in sequence else {}
