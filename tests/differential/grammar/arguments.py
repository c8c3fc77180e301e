"""The arguments of a program: sizes, numbers, and tensors that lie in memory in every way."""

from __future__ import annotations

import random
from typing import Any

import torch

from tests.differential.draft import COMPLEX, FLOATS, HALF, INTEGERS, Draft
from tests.differential.grammar.containers import contain
from tests.differential.ir import Code, Name, Operand, Statement

NUMBERS = {
    "n": [0, 1, 2, 3, 4, 2],
    "k": [1, 2, 3, 4],
    "a": [0.5, -1.5, 2.0, 0.25, 1.0, -0.0],
    # Integers of 8 bits cannot hold some.
    "w": [7, 300, -1, -130, 260],
    "flag": [True, False],
}
"""Arguments that are numbers, and their values."""

_SIZES = [2, 3, 4, 5, 6, 3, 4]


def table(rng: random.Random) -> tuple[list[str], list[tuple[Any, ...]], set[str]]:
    """Columns, rows, and features of these."""
    columns = ["s", "t"]
    columns += [name for name in NUMBERS if rng.random() < 0.45]
    count = rng.choices([1, 2, 3, 4], [6, 5, 5, 3])[0]
    features: set[str] = set()
    row: dict[str, Any] = {"s": rng.choice(_SIZES), "t": rng.choice(_SIZES)}
    if rng.random() < 0.05:
        row[rng.choice("st")] = rng.choice([0, 1])
    row.update((name, rng.choice(NUMBERS[name])) for name in columns if name in NUMBERS)
    rows = [tuple(row[name] for name in columns)]
    moving = [name for name in columns if rng.random() < (0.5 if name in "st" else 0.75)]
    if rng.random() < 0.2:
        # As a position in a cache does.
        moving = [name for name in moving if name in NUMBERS]
        count = max(count, 3)
    if rng.random() < 0.015:
        # More sizes than are compiled at once.
        count = 12
        moving = [rng.choice("st")]
        features.add("calls.many")
    features.add(f"calls.{min(count, 4)}")
    for _ in range(count - 1):
        if rng.random() < 0.2:
            rows.append(rows[-1])
            continue
        for name in moving:
            if name in NUMBERS:
                row[name] = rng.choice(NUMBERS[name])
            elif rng.random() < 0.18:
                row[name] = rng.choice([0, 1, 1])
            elif count > 4:
                row[name] = rng.randint(2, 14)
            elif rng.random() < 0.8:
                row[name] = rng.choice(_SIZES)
        rows.append(tuple(row[name] for name in columns))
    for at, name in enumerate(columns):
        found = {item[at] for item in rows}
        kind = "sizes" if name in "st" else "numbers"
        if len(found) > 1:
            features.add(f"{kind}.changing")
        if name in "st" and found & {0, 1}:
            features.update(f"sizes.{size}" for size in (0, 1) if size in found)
    if len(rows) > len(set(rows)):
        features.add("calls.repeated")
    positions = [at for at, name in enumerate(columns) if name in ("n", "k")]
    of_one_size = [[row for row in rows if row[:2] == sizes] for sizes in {row[:2] for row in rows}]
    if any(len({row[at] for row in found}) > 2 for found in of_one_size for at in positions):
        features.add("numbers.alone")
    return columns, rows, features


def make(draft: Draft, dtypes: list[torch.dtype], training: bool) -> None:
    """Add some arguments to a draft."""
    rng = draft.rng
    count = rng.choices([1, 2, 3], [3, 5, 3])[0]
    shape = _shape(rng)
    for number in range(count):
        dtype = rng.choice(dtypes)
        if rng.random() < 0.4:
            shape = _shape(rng)
        _one(draft, number, shape, dtype, training)
    if rng.random() < 0.12:
        name = rng.choice([item for item in draft.parameters if item.startswith("x")])
        draft.parameters.append(name + "_again")
        draft.prepare(Statement("{0}", (Name(name),), name + "_again"))
        draft.features.add("arguments.repeated")
    if rng.random() < 0.15:
        draft.prepare(Statement("positions(({0},), 2, {1})", (Name("s"), 3), "p"))
        draft.parameters.append("p")
        draft.features.add("arguments.positions")
    if rng.random() < 0.2:
        contain(draft)
    draft.visible += draft.parameters
    draft.parameters += [name for name in draft.columns if name in NUMBERS]
    draft.features |= {f"numbers.{name}" for name in draft.columns if name in NUMBERS}


def _shape(rng: random.Random) -> tuple[Operand, ...]:
    s, t = Name("s"), Name("t")
    options: list[tuple[Operand, ...]] = [
        (s,), (s, t), (s, 4), (3, t), (4, 3), (6,), (s, t, 2), (2, 3, 4), (s, s), (2, s, 3), (),
        (s, 2), (8,), (s, 1), (1, t), (2, 3, s, 4), (s, 3, t), (2, 4, t, 5),
    ]  # fmt: skip
    return rng.choice(options)


WAYS = {
    "plain": 7,
    "offset": 3,
    "transposed": 3,
    "strided": 3,
    "expanded": 1.5,
    "overlapping": 3,
    "flipped": 0.7,
    "conjugated": 2,
    "negated": 1,
    "of_other": 2,
    "unknown": 2,
    "non_leaf": 1,
}
"""How a tensor lies in memory, with weights."""


OVER = "torch.empty_like({{0}}[:0]).set_({{0}}.untyped_storage(), {}, {{1}})"
"""A tensor from a place of a storage on, of which autograd does not know."""

_OF_OTHER = (
    "{0}[1:]",
    "{0}[:-1]",
    "{0}.view(-1)",
    "{0}[0]",
    "{0}.detach()[:2]",
    "{0}.detach()",
    "{0}.data",
    "{0}.data[1:]",
    "torch.empty_like({0}.detach()).set_({0}.data)",
)


_CONDITIONS = {"flag": "{1}", "n": "{1} > 2", "k": "{1} > 1"}
"""Of numbers that differ from call to call: where an argument lies in another's memory."""


def _one(
    draft: Draft, number: int, shape: tuple[Operand, ...], dtype: torch.dtype, training: bool
) -> None:
    rng = draft.rng
    name, base = f"x{number}", f"b{number}"
    differentiable = training and (dtype.is_floating_point) and rng.random() < 0.8
    way = rng.choices(list(WAYS), list(WAYS.values()))[0]
    maker = "numbers"
    if dtype.is_floating_point and rng.random() < 0.1:
        maker = "special"
        draft.features.add("arguments.special")
    elif dtype in (torch.float32, torch.float64) and rng.random() < 0.2:
        maker = "fine"
    made = Code(maker + "({0}, {1}, {2})", (shape, dtype, rng.randrange(100)))
    grad = ".requires_grad_()" if differentiable else ""
    if differentiable:
        draft.features.add("arguments.requires_grad")
    others = [item for item in draft.parameters if item.startswith("x")]
    statements: list[Statement] = []
    second: Operand = shape
    operands: tuple[Operand, ...]
    if way in ("conjugated", "negated") and dtype not in COMPLEX:
        way = "strided"
    if way == "conjugated":
        text, operands = "{0}.conj()", (made,)
    elif way == "negated":
        text, operands = "{0}.conj().imag", (made,)
    elif way == "of_other" and others:
        other = Name(rng.choice(others))
        text, grad = rng.choice(_OF_OTHER), ""
        operands = (other,)
        conditions = [item for item in _CONDITIONS if item in draft.columns]
        if conditions and rng.random() < 0.5:
            way, chosen = "at_times", rng.choice(conditions)
            text = f"({text} if {_CONDITIONS[chosen]} else {text}.clone())"
            operands = (other, Name(chosen))
    elif way == "non_leaf" and differentiable:
        leaf = Statement("{0}.requires_grad_()", (made,), base)
        statements.append(leaf)
        text, operands, grad = "{0} * 1", (Name(base),), ""
    elif way in ("plain", "non_leaf", "of_other") or not shape:
        way, text, operands = "plain", "{0}", (made,)
    else:
        wider = {
            "offset": ((_more(shape[0], 2), *shape[1:]), "{0}[2:]"),
            "transposed": (tuple(reversed(shape)), "{0}.permute({1})"),
            "strided": ((*shape[:-1], _times(shape[-1], 2)), "{0}[..., ::2]"),
            "expanded": ((1, *shape[1:]), "{0}.expand({1})"),
            "overlapping": ((_more(shape[0], 1), *shape[1:]), "{0}[1:]"),
            "flipped": (shape, "{0}.flip(0)"),
            "unknown": ((_more(shape[0], 2), *shape[1:]), OVER.format(1)),
        }
        larger, text = wider[way]
        statements.append(Statement(made.text, (larger, *made.operands[1:]), base))
        if way == "transposed":
            second = tuple(reversed(range(len(shape))))
        operands = (Name(base), second)
        if grad:
            text, grad = f"{text}.detach()", ".requires_grad_()"
    statement = Statement(text + grad, operands, name, "", (f"arguments.{way}",))
    if not all(draft.prepare(item) for item in (*statements, statement)):
        draft.setup = [item for item in draft.setup if item.target not in (name, base)]
        draft.prepare(Statement("{0}", (made,), name, "", ("arguments.plain",)))
    if way not in ("overlapping", "unknown", "of_other", "at_times") and rng.random() < 0.15:
        _change_at_times(draft, name, differentiable)
    draft.parameters.append(name)
    draft.features.add(f"dtype.{str(draft.value(name).dtype).removeprefix('torch.')}")
    beside = {"overlapping": "{0}[:-1]", "unknown": OVER.format(rng.choice([0, 1, 2]))}.get(way)
    if beside is not None and any(item.target == base for item in draft.setup):
        again = name + "_beside"
        if draft.prepare(Statement(beside + grad, (Name(base), second), again)):
            draft.parameters.append(again)


_CHANGES = {
    "layout": "{0}.mT.contiguous().mT",
    "offset": "{0}.repeat_interleave(2, 0)[1::2]",
    "type": "{0}.double()",
    "class": "torch.nn.Parameter({0}, requires_grad=False)",
}
"""What an argument is in some calls."""


def _change_at_times(draft: Draft, name: str, differentiable: bool) -> None:
    """Have an argument lie otherwise in some calls, be of another type, or need no gradient."""
    conditions = [item for item in _CONDITIONS if item in draft.columns]
    if not conditions:
        return
    chosen = draft.rng.choice(conditions)
    kind = "gradient" if differentiable else draft.rng.choice(list(_CHANGES))
    changed = _CHANGES.get(kind, "{0}.detach()")
    text = f"({changed} if {_CONDITIONS[chosen]} else {{0}})"
    draft.prepare(
        Statement(text, (Name(name), Name(chosen)), name, "", (f"arguments.changing_{kind}",))
    )


def _more(size: Operand, by: int) -> Operand:
    return size + by if isinstance(size, int) else Code(f"{{0}} + {by}", (size,))


def _times(size: Operand, by: int) -> Operand:
    return size * by if isinstance(size, int) else Code(f"{by} * {{0}}", (size,))


def types(rng: random.Random, training: bool) -> list[torch.dtype]:
    """The element types of a program's arguments, mostly one or two."""
    if training:
        pool = [torch.float32] * 6 + [torch.float64] + list(HALF)
        return [torch.float32, rng.choice(pool), rng.choice([*pool, torch.int64])]
    main = rng.choice([torch.float32] * 7 + [*FLOATS, *INTEGERS, *COMPLEX, torch.bool])
    return [main, main, rng.choice([*FLOATS, *INTEGERS, *COMPLEX, torch.bool])]
