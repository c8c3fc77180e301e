"""Composites, emitted as the kernels of a target have them."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.values import Body, as_tuple
from pjrt_bridge.stablehlo.composites import Composite
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.types import TensorType


def compose(
    kernels: Kernels,
    b: Builder,
    composite: Composite,
    operands: Sequence[Value],
    decomposition: Body,
    results: Sequence[TensorType],
) -> tuple[Value, ...]:
    """Emit a composite as a target computes it, and as its decomposition where it does not.

    Args:
        kernels: of the target.
        b: the builder to emit into.
        composite: name, attributes and version.
        operands: its operands.
        decomposition: see `Kernels.composite`.
        results: types of its results.

    Raises:
        ProgramError: the kernels emit results of other types.
    """
    if not kernels.takes(composite):
        return as_tuple(decomposition(tuple(operands)))
    found = as_tuple(kernels.composite(b, composite, operands, decomposition))
    types = [value.type for value in found]
    if types != list(results):
        listed = (", ".join(map(str, item)) or "none" for item in (types, results))
        raise ProgramError(
            "composite {!r}: kernels emit {}, expected {}".format(composite.name, *listed)
        )
    return found
