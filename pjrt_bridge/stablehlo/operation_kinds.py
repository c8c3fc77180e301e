"""Kinds of StableHLO's operations: what passes and patterns ask of an operation by its name.

Names are those of the specification, without a dialect; `named` writes them as MLIR does.
"""

from __future__ import annotations

from collections.abc import Iterable


def named(names: Iterable[str]) -> frozenset[str]:
    """Names of StableHLO's operations with the dialect in front."""
    return frozenset(f"stablehlo.{name}" for name in names)


def names_in(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


ELEMENTWISE = names_in("""
    abs add and atan2 cbrt ceil clamp compare complex convert cosine count_leading_zeros divide
    exponential exponential_minus_one floor imag is_finite log log_plus_one logistic maximum minimum
    multiply negate not or popcnt power real reduce_precision remainder round_nearest_afz
    round_nearest_even rsqrt select shift_left shift_right_arithmetic shift_right_logical sign sine
    sqrt subtract tan tanh xor
""")
"""Operations that compute one number for each element (specification, "elementwise")."""

COPYING = names_in("""
    bitcast_convert broadcast_in_dim concatenate constant dynamic_slice dynamic_update_slice gather
    iota pad reshape reverse slice transpose
""")
"""Operations whose results have only numbers that are given."""

COLLECTING = names_in("""
    cholesky convolution dot_general fft reduce reduce_window scatter select_and_scatter sort
    triangular_solve
""")
"""Operations that compute an element of several ones."""

PURE = ELEMENTWISE | COPYING | COLLECTING
"""Operations that only give results, unless what their regions compute has effects."""
