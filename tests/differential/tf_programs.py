"""Random TensorFlow functions: statements over tensors and variables, generated while they run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.differential.ir import Name, Operand, Statement
from tests.differential.tf_draft import Draft, TfProgram
from tests.differential.tf_grammar import ERRORS, PRODUCTIONS, Made

_FLOATS = ("float32", "float64")
_TYPES = (*_FLOATS, "float32", "float32", "int32", "int64", "bool", "bfloat16", "complex64")


def generate(seed: int, index: int) -> TfProgram:
    """The program of a seed and an index."""
    rng = random.Random(f"tensorflow {seed} {index}")
    s, t = Name("s"), Name("t")
    shapes: list[tuple[Operand, ...]] = [(s,), (s, t), (s, 3), (4, t), (3, 3), (2, s, t), (s, s)]
    dtypes = [rng.choice(_TYPES) for _ in range(2)]
    arguments = tuple((rng.choice(shapes), rng.choice(dtypes)) for _ in range(rng.randint(1, 3)))
    row = (rng.choice([2, 3, 4, 5]), rng.choice([2, 3, 4]))
    calls = [row]
    for _ in range(rng.choice([0, 1, 2, 3])):
        if rng.random() < 0.7:
            row = (rng.choice([2, 3, 4, 5, 6, 1, 0]), rng.choice([2, 3, 4, row[1]]))
        calls.append(row)
    variables = tuple(
        Statement(
            "tf.Variable(numbers({0}, {1}, {2}))",
            (rng.choice([(4,), (3, 3), (2, 4)]), rng.choice(["float32", "int32", "float64"]), at),
            f"w{at}",
        )
        for at in range(rng.randint(1, 2))
    )
    first = TfProgram(variables, arguments, tuple(calls), where=(seed, index))
    draft = Draft(rng, replace(first, symbolic=rng.random() < 0.4))
    wanted = rng.randint(1, 7)
    weights = {name: weight * rng.choice([0, 1, 1, 3]) for name, (_, weight) in PRODUCTIONS.items()}
    if not any(weights.values()):
        weights = {name: weight for name, (_, weight) in PRODUCTIONS.items()}
    for _ in range(wanted * 10):
        if len(draft.program.body) >= wanted:
            break
        (name,) = rng.choices(list(weights), list(weights.values()))
        try:
            draft.add(_statement(draft, f"tf.{name}", PRODUCTIONS[name][0]))
        except LookupError:
            continue
    if rng.random() < 0.06:
        _fail(draft)
    return replace(draft.program, result=_result(draft))


def _statement(draft: Draft, feature: str, make: Callable[[Draft], Made]) -> Statement:
    text, operands, makes = make(draft)
    draft.number += 1
    target = f"v{draft.number}" if makes else ""
    return Statement(text, operands, target, "", (feature,))


def _fail(draft: Draft) -> None:
    for _ in range(10):
        name = draft.rng.choice(list(ERRORS))
        try:
            if draft.add_failing(_statement(draft, f"tf.errors.{name}", ERRORS[name])):
                return
        except LookupError:
            continue


def _result(draft: Draft) -> Operand:
    rng = draft.rng
    made = [statement.target for statement in draft.program.body if statement.target]
    chosen: list[Operand] = [Name(name) for name in made[-3:]]
    if rng.random() < 0.3 or not chosen:
        chosen.append(Name(rng.choice(draft.visible)))
    if rng.random() < 0.2:
        return {"a": chosen[0], "b": chosen[1:]}
    return chosen[0] if len(chosen) == 1 and rng.random() < 0.5 else tuple(chosen)
