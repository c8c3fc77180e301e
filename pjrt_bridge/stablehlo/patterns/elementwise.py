"""Elementwise operations of StableHLO, as steps of expressions have them."""

from __future__ import annotations

COMPUTED = frozenset(
    (
        *("abs", "add", "and", "ceil", "cosine", "divide", "exponential"),
        *("exponential_minus_one", "floor", "log", "log_plus_one", "logistic", "maximum"),
        *("minimum", "multiply", "negate", "not", "or", "power", "round_nearest_even", "rsqrt"),
        *("select", "sign", "sine", "sqrt", "subtract", "tanh", "xor"),
    )
)
"""StableHLO's elementwise operations that expressions have."""

LOGICAL = {"add": "or", "multiply": "and", "xor": "not_equal"}
"""Operations of bool by other names (StableHLO specification, "add", "multiply", "xor")."""

EXACT = frozenset(
    (
        *("abs", "ceil", "floor", "maximum", "minimum", "negate", "round_nearest_even", "select"),
        "sign",
    )
)
"""Operations whose results need no rounding where their operands are rounded."""

COMPARED = {"EQ": "equal", "NE": "not_equal", "LT": "less", "LE": "less_equal"}
TURNED = {"GT": "less", "GE": "less_equal"}
"""Comparisons, and those of the sides in the other order."""

PRODUCTS = (-3, -2, -1, 1, 2, 3)
"""Exponents of powers that are products, as compilers have them."""
