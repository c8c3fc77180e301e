"""Numbers in StableHLO text that MLIR or the compilers behind it do not survive.

MLIR reads decimals in time that grows with the square of their length: 10,000 digits take seconds.
And XLA ends the process where the size of an array, used or not, does not fit into 64 bits.
"""

from __future__ import annotations

import math
import re

from pjrt_bridge.errors import ProgramError

DIGITS = 400
"""Digits of a number that are accepted; no element type has more than 309 before its point."""

ELEMENTS = 1 << 48
"""Elements of an array that are accepted: more than fit into any memory."""

_STEP = 100
_DIGITS = bytes(ord("0") <= sign <= ord("9") for sign in range(256))
# A product of fewer digits is below the limit, so real programs have hardly any of these. What
# follows `dense` are elements.
_LARGE = re.compile(rb"(?<!dense)<([\dx?\s]{15,}+)")


def check(data: bytes, what: str) -> None:
    """Check the numbers of a program.

    Args:
        data: StableHLO text as `lexing.plain` leaves it.
        what: name of the input in error messages.

    Raises:
        ProgramError: too many digits, or elements of an array.
    """
    at = _long_number(data)
    if at is not None:
        raise ProgramError(
            f"{what}: line {_line(data, at)}: found a number of more than {DIGITS} digits, "
            f"expected {DIGITS} at most"
        )
    for found in _LARGE.finditer(data):
        # One that is empty may have sizes that overflow, too.
        elements = math.prod(int(size) or 1 for size in re.findall(rb"\d+", found[1]))
        if elements > ELEMENTS:
            line = _line(data, found.start())
            raise ProgramError(
                f"{what}: line {line}: found an array of {elements} elements, expected {ELEMENTS} "
                "at most"
            )


def _line(data: bytes, at: int) -> int:
    return 1 + data.count(b"\n", 0, at)


def _long_number(data: bytes) -> int | None:
    """Where more than `DIGITS` digits in a row begin; None where nowhere.

    Only one byte in `_STEP` is looked at, as a long number shows in several of these in a row.
    """
    several = DIGITS // _STEP
    samples = data[::_STEP].translate(_DIGITS)
    at = samples.find(b"\1" * several)
    while at >= 0:
        first, last = at * _STEP, (at + several - 1) * _STEP
        if data[first : last + 1].isdigit():
            before, after = data[max(0, first - _STEP) : first], data[last + 1 : last + 1 + _STEP]
            start = first - len(before) + len(before.rstrip(b"0123456789"))
            end = last + 1 + len(after) - len(after.lstrip(b"0123456789"))
            if end - start > DIGITS:
                return start
        at = samples.find(b"\1" * several, at + 1)
    return None
