"""Attacks by programs: text, bytecode and portable artifacts."""

from __future__ import annotations

import random
from functools import cache

from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Program
from tests import programs
from tests.attacks.registry import damaged, subject
from tests.plugins import cpu_plugin
from tests.stablehlo.program import nested

TEXTS = (
    programs.ADD,
    programs.ALIASED_ADD,
    programs.TWO_RESULTS,
    programs.ALL_REDUCE,
    nested.conditions(3),
    nested.doubled_calls(4),
    nested.type_aliases(3),
)
WORDS = (
    "{", "}", "(", ")", "<", ">", '"', "%a", "@main", "tensor<9223372036854775807xf32>", "\0", "é",
    "tensor<?xf32>", "tensor<-1xf32>", "loc(#loc9)", "f8E4M3FN", "i128", "-1", "module",
    "func.func", "99999999999999999999", "affine_map<(d0) -> (d0)>",
)  # fmt: skip
DEPTHS = (100, 600, 5_000, 50_000)


@cache
def client() -> Client:
    """One device."""
    return cpu_plugin().client({"cpu_device_count": 1})


@cache
def forms() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """The texts as bytecode, and as portable artifacts where they have that form."""
    parsed = [Program.parse(text) for text in TEXTS]
    return (
        tuple(program.bytecode() for program in parsed),
        tuple(program.portable_artifact() for program in parsed[:-1]),
    )


def altered(text: str, number: int) -> str:
    """Text with a few changes of words and signs."""
    chance = random.Random(number)
    words = text.split(" ")
    for _ in range(chance.choice((1, 1, 2, 4))):
        at, other = chance.randrange(len(words)), chance.randrange(len(words))
        match chance.randrange(5):
            case 0:
                words[at], words[other] = words[other], words[at]
            case 1:
                words[at] = chance.choice(WORDS)
            case 2:
                del words[at : at + chance.randrange(1, 5)]
                words = words or [""]
            case 3:
                words[at:at] = words[other : other + chance.randrange(1, 8)]
            case _:
                word = words[at]
                place = chance.randrange(len(word) + 1)
                words[at] = word[:place] + chr(chance.randrange(1, 300)) + word[place + 1 :]
    return " ".join(words)


def use(program: Program) -> None:
    """Look at all of a program."""
    _ = program.signature, program.text, program.custom_calls
    program.portable_artifact()


@subject(300)
def program_text(number: int) -> None:
    use(Program.parse(altered(TEXTS[number % len(TEXTS)], number)))


@subject(150)
def compiled_text(number: int) -> None:
    client().compile(altered(TEXTS[number % 3], number + 1000)).close()


@subject(len(nested.KINDS) * len(DEPTHS))
def nested_text(number: int) -> None:
    kind = list(nested.KINDS.values())[number % len(nested.KINDS)]
    depth = DEPTHS[number // len(nested.KINDS)]
    use(Program.parse(kind(depth)))


@subject(150)
def program_bytecode(number: int) -> None:
    found = forms()[0]
    use(Program.parse(damaged(found[number % len(found)], number)))


@subject(150)
def program_artifact(number: int) -> None:
    found = forms()[1]
    use(Program.parse(damaged(found[number % len(found)], number)))
