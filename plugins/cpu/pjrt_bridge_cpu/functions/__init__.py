"""Functions of floats as operations that XLA's CPU compiler makes vectors of.

It calls the C library for each element of a sine, a power or a remainder, and branches around each
that a `select` may not need, so that the whole loop has no vectors: 14 ns for a sine, where 1 ns is
possible. What is here has arithmetic and selections alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar

from pjrt_bridge.stablehlo import Builder, ElementwiseFunction, Value
from pjrt_bridge.stablehlo.kernels import Kernels, convert
from pjrt_bridge_cpu.functions.angles import cosine, sine, tangent
from pjrt_bridge_cpu.functions.arcs import angle, arc_cosine, arc_sine, arc_tangent
from pjrt_bridge_cpu.functions.arithmetic import FLOAT32, FLOAT64
from pjrt_bridge_cpu.functions.powers import log1p, power
from pjrt_bridge_cpu.functions.remainders import remainder
from pjrt_bridge_cpu.functions.wide_angles import wide_cosine, wide_sine, wide_tangent

LEAST = 256
"""Elements from which on a loop has vectors."""

LEAST_WIDE = 1 << 12
"""Elements of float64 from which on a look at all of them is worth it."""


def _in_float32(function: Callable[..., Value | None]) -> ElementwiseFunction:
    """A function of float32 for narrower floats, too; large arrays only."""

    def narrow_or_wide(b: Builder, *operands: Value) -> Value | None:
        x = operands[0]
        if not x.dtype.is_float or x.dtype.bits > 32 or x.size < LEAST:
            return None
        found = function(b, *(convert(b, operand, FLOAT32) for operand in operands))
        return None if found is None else convert(b, found, x.dtype)

    return narrow_or_wide


def _in_both(
    narrow: Callable[..., Value | None], wide: Callable[..., Value]
) -> ElementwiseFunction:
    """A function of float32 for narrower floats, too, and one of float64; large arrays only."""
    others = _in_float32(narrow)

    def narrow_or_wide(b: Builder, *operands: Value) -> Value | None:
        x = operands[0]
        if x.dtype == FLOAT64 and x.size >= LEAST_WIDE:
            return wide(b, *operands)
        return others(b, *operands)

    return narrow_or_wide


class VectorFunctions(Kernels):
    """Powers, remainders, functions of angles and their inverses, and `log1p` in vectors."""

    functions: ClassVar[Mapping[str, ElementwiseFunction]] = MappingProxyType(
        {
            "chlo.acos": _in_float32(arc_cosine),
            "chlo.asin": _in_float32(arc_sine),
            "chlo.atan": _in_float32(arc_tangent),
            "stablehlo.atan2": _in_float32(angle),
            "stablehlo.cosine": _in_both(cosine, wide_cosine),
            "stablehlo.log_plus_one": _in_float32(log1p),
            "stablehlo.power": _in_float32(power),
            "stablehlo.remainder": _in_float32(remainder),
            "stablehlo.sine": _in_both(sine, wide_sine),
            "stablehlo.tan": _in_both(tangent, wide_tangent),
        }
    )
