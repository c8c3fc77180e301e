"""Functions of `math` and of NumPy on sizes, made of those of which torch has a symbolic form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

# -- math ------------------------------------------------------------------------------------------


def log(x: float, /) -> float:
    """`math.log` of one argument.

    Of two arguments, quotients that are whole numbers would be rounded otherwise.
    """
    return math.log2(x) * math.log(2)


def log1p(x: float, /) -> float:
    """`math.log1p`."""
    return math.log2(1 + x) * math.log(2)


def log10(x: float, /) -> float:
    """`math.log10`: exact for powers of ten, which programs round up or down."""
    found = math.log2(x) * math.log10(2)
    whole = math.floor(found + 0.5)
    is_whole: float = 1.0 - torch.sym_min(abs(x - 10.0**whole), 1.0)  # type: ignore[no-untyped-call]
    return found + math.floor(is_whole) * (whole - found)


def exp(x: float, /) -> float:
    """`math.exp`, by a power."""
    made: float = math.e ** float(x)
    return made


def power(x: float, y: float, /) -> float:
    """`math.pow`."""
    made: float = float(x) ** y
    return made


def hypot(x: float, y: float, /) -> float:
    """`math.hypot` of two arguments."""
    return math.sqrt(x * x + y * y)


def fabs(x: float, /) -> float:
    """`math.fabs`."""
    return float(abs(x))


def isqrt(n: int, /) -> int:
    """`math.isqrt`: exact for numbers below 2^52, as sizes are."""
    return int(math.sqrt(n))


def fmod(x: float, y: float, /) -> float:
    """`math.fmod`: the rest has the sign of the first number."""
    rest = float(abs(x) % abs(y))
    return -rest if x < 0 else rest


def degrees(x: float, /) -> float:
    """`math.degrees`."""
    return x * (180.0 / math.pi)


def shares_of_divisors(known: int) -> tuple[tuple[int, int], ...]:
    """Each divisor of a number above 0, with how many numbers up to it have no divisor in common.

    These counts add up to the greatest common divisor of the number and another, over those that
    divide the other, too (Gauss).
    """
    return tuple(
        (one, sum(math.gcd(one, other) == 1 for other in range(1, one + 1)))
        for one in range(1, known + 1)
        if known % one == 0
    )


def greatest_common_divisor(number: int, known: int, shares: Sequence[tuple[int, int]]) -> int:
    """`math.gcd` of a number and one that is known, by what `shares_of_divisors` gives for that."""
    found = known
    for divisor, share in shares:
        is_none: int = torch.sym_min(number % divisor, 1)  # type: ignore[no-untyped-call]
        found = found - share * is_none
    return found


def least_common_multiple(number: int, known: int, shares: Sequence[tuple[int, int]]) -> int:
    """`math.lcm` of the same."""
    return abs(number) * (known // greatest_common_divisor(number, known, shares))


def bit_length(number: int) -> int:
    """`int.bit_length` of numbers from 0 to 2^48, as sizes are."""
    least: int = torch.sym_max(number, 1)  # type: ignore[no-untyped-call]
    one: int = torch.sym_min(number, 1)  # type: ignore[no-untyped-call]
    return math.floor(math.log2(least)) + one


def counted(start: int, stop: int, step: int = 1) -> tuple[int, ...]:
    """The numbers of a `range`, whose count alone is of the graph.

    Raises:
        ValueError: the step is 0.
    """
    if step == 0:
        raise ValueError("range() arg 3 must not be zero")
    count = (stop - start + step - 1) // step if step > 0 else (start - stop - step - 1) // -step
    return tuple([start + at * step for at in range(count)])


# -- NumPy: numbers, where NumPy has scalars -------------------------------------------------------


def _floor(x: float) -> float:
    return float(math.floor(x))


def _ceil(x: float) -> float:
    return float(math.ceil(x))


def _log2(x: float) -> float:
    return math.log2(x)


def _sqrt(x: float) -> float:
    return math.sqrt(x)


def _absolute(x: float) -> float:
    return abs(x)


def _power(x: float, y: float) -> float:
    made: float = x**y
    return made


def _product(several: Sequence[int]) -> int:
    made = 1
    for one in several:
        made = made * one
    return made


def _maximum(x: float, y: float) -> float:
    made: float = torch.sym_max(x, y)  # type: ignore[no-untyped-call]
    return made


def _minimum(x: float, y: float) -> float:
    made: float = torch.sym_min(x, y)  # type: ignore[no-untyped-call]
    return made


def _linspace(start: float, stop: float, num: int = 50) -> Any:
    return torch.linspace(start, stop, num, dtype=torch.float64, device="cpu").numpy()


OF_MATH: dict[Any, Callable[..., Any]] = {
    math.log: log,
    math.log1p: log1p,
    math.log10: log10,
    math.exp: exp,
    math.pow: power,
    math.hypot: hypot,
    math.fabs: fabs,
    math.fmod: fmod,
    math.degrees: degrees,
    math.isqrt: isqrt,
}
"""By the function of `math`, the one that is traced instead."""

OF_NUMPY: dict[Any, Callable[..., Any]] = {
    np.sqrt: _sqrt,
    np.log: log,
    np.log1p: log1p,
    np.log2: _log2,
    np.exp: exp,
    np.ceil: _ceil,
    np.floor: _floor,
    np.absolute: _absolute,
    np.power: _power,
    np.prod: _product,
    np.maximum: _maximum,
    np.minimum: _minimum,
    np.linspace: _linspace,
}
"""By the function of NumPy, the one that is traced instead."""
