"""What is attacked: each subject runs an attack by its number, the same one every time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

Attack = Callable[[int], object]


@dataclass(frozen=True)
class Subject:
    """One part of the bridge.

    Attributes:
        count: how many attacks there are; more go, with other numbers.
        attack: runs one. An error of the bridge is a refusal; other exceptions are problems.
    """

    count: int
    attack: Attack


SUBJECTS: dict[str, Subject] = {}


def subject(count: int) -> Callable[[Attack], Attack]:
    """Register a function as a subject under its name."""

    def register(attack: Attack) -> Attack:
        SUBJECTS[attack.__name__] = Subject(count, attack)
        return attack

    return register


def damaged(data: bytes, number: int) -> bytes:
    """Bytes with a few changes: flipped bits, cuts, copies, counts that are too large."""
    chance = random.Random(number)
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(found) + 1)
        length = chance.choice((1, 2, 4, 8, 64, 1000))
        match chance.randrange(6):
            case 0 if found:
                found[at % len(found)] ^= 1 << chance.randrange(8)
            case 1:
                del found[at:]
            case 2:
                del found[at : at + length]
            case 3:
                found[at:at] = found[at : at + length]
            case 4:
                found[at : at + length] = b"\xff" * length
            case _:
                found[at:at] = chance.randbytes(length)
    return bytes(found)
