"""The collective operations of a compiled program: what a partitioner added, and what they move.

Source: `xla/service/hlo.proto` and `xla/xla_data.proto` of openxla/xla, of which a few fields are
read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pjrt_bridge import wire
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import cost

_OPERATIONS = frozenset(
    (
        "all-gather",
        "all-reduce",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "ragged-all-to-all",
        "reduce-scatter",
    )
)
_START = "-start"
_WITH_OPERANDS = frozenset(("all-gather-start", "collective-permute-start"))
"""Whose results are what they were given, then what they give."""

_BITS = (
    {1: 8, 16: 16}
    | {2: 8, 3: 16, 4: 32, 5: 64, 6: 8, 7: 16, 8: 32, 9: 64, 21: 4, 22: 4, 26: 2, 27: 2}
    | {10: 16, 11: 32, 12: 64, 15: 64, 18: 128, 30: 1, 31: 1, 32: 4}
    | dict.fromkeys((19, 20, 23, 24, 25, 28, 29, 33), 8)
)
"""Of an element, by the number of its type (`PrimitiveType`)."""


@dataclass(frozen=True)
class Collective:
    """A collective operation of a program.

    Attributes:
        operation: its name in HLO: `all-reduce`, `all-gather`, ...
        count: how often it stands in the program; in a loop once.
        nbytes: of all its results on one device; in a loop of HLO those of one turn.
    """

    operation: str
    count: int
    nbytes: int


def collectives_in(code: bytes, format: str) -> tuple[Collective, ...]:
    """The collective operations of an optimized program, those that give most first.

    Args:
        code: what the plugin gave.
        format: of it; of others than `hlo`, `hlo_with_config` and `mlir` nothing is known.

    Raises:
        ValueError: no such message, or no module of MLIR.
    """
    if format == "mlir":
        try:
            return totals(cost.communicated(code))
        except ProgramError as error:
            raise ValueError(str(error)) from None
    if format == "hlo_with_config":
        code = next(wire.messages(code, 1), b"")
    elif format != "hlo":
        return ()
    found: dict[str, list[int]] = {}
    for computation in wire.messages(code, 3):
        for instruction in wire.messages(computation, 2):
            operation, shape = "", b""
            for number, value in wire.fields(instruction):
                if number == 2 and isinstance(value, bytes):
                    operation = value.decode()
                elif number == 3 and isinstance(value, bytes):
                    shape = value
            name = operation.removesuffix(_START)
            if name in _OPERATIONS:
                found.setdefault(name, []).append(_given(operation, shape))
    return totals(found)


def totals(found: Mapping[str, Sequence[int]]) -> tuple[Collective, ...]:
    """Collective operations, those that give most first, from the bytes of each by their names."""
    made = [Collective(name, len(sizes), sum(sizes)) for name, sizes in found.items()]
    return tuple(sorted(made, key=lambda one: (-one.nbytes, one.operation)))


def _given(operation: str, shape: bytes) -> int:
    """Bytes that an operation gives."""
    if operation in _WITH_OPERANDS:
        return _bytes(list(wire.messages(shape, 4))[1])
    return _bytes(shape)


def _bytes(shape: bytes) -> int:
    kind, sizes, parts = 0, [], 0
    for number, value in wire.fields(shape):
        if number == 2 and isinstance(value, int):
            kind = value
        elif number == 3:
            sizes += [value] if isinstance(value, int) else _packed(value)
        elif number == 4 and isinstance(value, bytes):
            parts += _bytes(value)
    return parts + (math.prod(sizes) * _BITS.get(kind, 0) + 7) // 8


def _packed(data: bytes) -> list[int]:
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            found.append(value)
            value = shift = 0
    return found
