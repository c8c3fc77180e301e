"""Makes a program that fails smaller, for as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from tests.differential import values
from tests.differential.ir import (
    Code,
    Name,
    Operand,
    Program,
    Statement,
    element,
    is_element,
    mapped,
    names,
    parts,
    rebuilt,
)
from tests.differential.ir import renamed as replaced
from tests.differential.modes import Mode

Fails = Callable[[Program, Mode], bool]


def shrink(
    program: Program, mode: Mode, fails: Fails, seconds: float = 30.0
) -> tuple[Program, Mode]:
    """A smaller program, and a simpler mode, that fail.

    Args:
        program: that fails.
        mode: in which.
        fails: whether a program fails in a mode in the same way.
        seconds: when to stop.
    """
    deadline = time.monotonic() + seconds
    tried: set[tuple[str, str]] = set()

    def attempt(candidate: Program, way: Mode) -> bool:
        key = (candidate.source() + repr(replace(candidate, setup=(), body=())), repr(way))
        if key in tried or time.monotonic() > deadline:
            return False
        tried.add(key)
        return fails(candidate, way)

    progress = True
    while progress and time.monotonic() < deadline:
        progress = False
        for candidate in candidates(program):
            if candidate.size() < program.size() and attempt(candidate, mode):
                program, progress = candidate, True
                break
        if not progress:
            for way in _simpler(mode):
                if attempt(program, way):
                    mode, progress = way, True
                    break
    return program, mode


def _simpler(mode: Mode) -> Iterator[Mode]:
    if mode != Mode():
        yield Mode()
    if mode.dynamic is not False:
        yield replace(mode, dynamic=False)
    for at, (name, value) in enumerate(mode.options):
        left = (*mode.options[:at], *mode.options[at + 1 :])
        yield replace(mode, options=left)
        if name == "host_ops":
            for fewer in _smaller(value):
                yield replace(
                    mode, options=(*mode.options[:at], (name, fewer), *mode.options[at + 1 :])
                )


def candidates(program: Program) -> Iterator[Program]:
    """Simpler programs, those that leave out most first; some of them may not run."""
    yield from _fewer_calls(program)
    yield from _unpacked(program)
    yield from _without_statements(program)
    yield from _simpler_results(program)
    yield from _without_arguments(program)
    yield from _bypassed(program)
    yield from _inlined(program)
    for at in range(len(program.afterwards)):
        fewer = (*program.afterwards[:at], *program.afterwards[at + 1 :])
        yield replace(program, afterwards=fewer)
    if program.backward:
        yield replace(program, backward="")
    if program.backward not in ("", "backward"):
        yield replace(program, backward="backward")
    for section in ("setup", "body"):
        yield from _simpler_operands(program, section)
    yield from _simpler_rows(program)


def _fewer_calls(program: Program) -> Iterator[Program]:
    calls = program.calls
    for at in range(len(calls)):
        if len(calls) > 2:
            yield replace(program, calls=(calls[at],))
    for at in range(len(calls)):
        if len(calls) > 1:
            yield replace(program, calls=(*calls[:at], *calls[at + 1 :]))


def _closed(statements: tuple[Statement, ...], missing: set[str]) -> tuple[Statement, ...]:
    """The statements without those that read what is missing."""
    kept = []
    missing = set(missing)
    for statement in statements:
        if statement.reads() & missing:
            if statement.target:
                missing.add(statement.target)
            continue
        missing.discard(statement.target)
        kept.append(statement)
    return tuple(kept)


def _pruned(operand: Operand, known: set[str]) -> Operand:
    """A result without variables that there are no more."""
    if isinstance(operand, (tuple, list)):
        kept = [
            _pruned(item, known)
            for item in operand
            if not ({name.name for name in names(item)} - known) or isinstance(item, (tuple, list))
        ]
        return type(operand)(kept)
    if isinstance(operand, dict):
        return {key: _pruned(item, known) for key, item in operand.items()}
    return operand if {name.name for name in names(operand)} <= known else None


def _with_body(program: Program, body: tuple[Statement, ...]) -> Program:
    known = {statement.target for statement in body} | set(program.parameters)
    return replace(program, body=body, result=_pruned(program.result, known))


def _without_statements(program: Program) -> Iterator[Program]:
    body = program.body
    size = len(body)
    width = max(size // 2, 1)
    while size and width >= 1:
        for start in reversed(range(0, size, width)):
            dropped = body[start : start + width]
            left = (*body[:start], *body[start + width :])
            missing = {statement.target for statement in dropped if statement.target}
            yield _with_body(program, _closed(left, missing))
        if width == 1:
            break
        width //= 2


def _simpler_results(program: Program) -> Iterator[Program]:
    result = program.result
    for part in parts(result):
        yield replace(program, result=part)
    if isinstance(result, (tuple, list)) and len(result) > 1:
        for at in range(len(result)):
            yield replace(program, result=type(result)((*result[:at], *result[at + 1 :])))
    if isinstance(result, (list, dict)):
        yield replace(program, result=parts(result))
    if isinstance(result, tuple):
        for at, item in enumerate(result):
            for part in parts(item):
                yield replace(program, result=(*result[:at], part, *result[at + 1 :]))


def _without_arguments(program: Program) -> Iterator[Program]:
    for name in program.parameters:
        left = tuple(item for item in program.parameters if item != name)
        fewer = replace(program, parameters=left)
        yield _with_body(fewer, _closed(program.body, {name}))
    for at, statement in enumerate(program.setup):
        setup = _closed((*program.setup[:at], *program.setup[at + 1 :]), {statement.target})
        known = {item.target for item in setup} | set(program.columns)
        gone = {name for name in program.parameters if name not in known}
        left = tuple(name for name in program.parameters if name not in gone)
        fewer = replace(program, setup=setup, parameters=left)
        yield _with_body(fewer, _closed(program.body, gone))
    used = set(program.parameters) | {
        name for statement in program.setup for name in statement.reads()
    }
    for at, column in enumerate(program.columns):
        rows = tuple((*row[:at], *row[at + 1 :]) for row in program.calls)
        fewer = (*program.columns[:at], *program.columns[at + 1 :])
        if column not in used:
            yield replace(program, columns=fewer, calls=rows)
            continue
        value = {column: program.calls[0][at]}
        left = tuple(name for name in program.parameters if name != column)
        yield replace(
            program,
            columns=fewer,
            calls=rows,
            parameters=left,
            setup=_renamed(program.setup, value),
            body=_renamed(program.body, value),
            result=replaced(program.result, value),
        )


def _renamed(statements: tuple[Statement, ...], by: dict[str, Operand]) -> tuple[Statement, ...]:
    return tuple(
        replace(item, operands=tuple(replaced(operand, by) for operand in item.operands))
        for item in statements
    )


def _bypassed(program: Program) -> Iterator[Program]:
    """A statement gives way to one of the variables that it reads."""
    for at, statement in enumerate(program.body):
        if not statement.target:
            continue
        for name in sorted(statement.reads()):
            by = {statement.target: Name(name)}
            body = (*program.body[:at], *_renamed(program.body[at + 1 :], by))
            yield replace(program, body=body, result=replaced(program.result, by))


def _inlined(program: Program) -> Iterator[Program]:
    """A variable of the setup that another one is a plain name of."""
    for at, statement in enumerate(program.setup):
        if statement.text == "{0}" and isinstance(statement.operands[0], Name):
            by = {statement.target: statement.operands[0]}
            setup = (*program.setup[:at], *_renamed(program.setup[at + 1 :], by))
            parameters = tuple(
                statement.operands[0].name if name == statement.target else name
                for name in program.parameters
            )
            if len(set(parameters)) == len(parameters):
                yield replace(
                    program,
                    setup=setup,
                    parameters=parameters,
                    body=_renamed(program.body, by),
                    result=replaced(program.result, by),
                )
    for at, statement in enumerate(program.setup[1:], 1):
        before = program.setup[at - 1]
        reads = {name for item in program.setup[at + 1 :] for name in item.reads()}
        # `b0 = numbers(...); x0 = b0[...]` as one plain tensor.
        if before.target in statement.reads() and before.target not in reads:
            setup = (
                *program.setup[: at - 1],
                replace(before, target=statement.target),
                *program.setup[at + 1 :],
            )
            yield replace(program, setup=setup)


def _unpacked(program: Program) -> Iterator[Program]:
    """What a container among the arguments holds is given by itself."""
    for at, statement in enumerate(program.setup):
        container = Name(statement.target)
        if statement.text != "{0}" or container.name not in program.parameters:
            continue
        if not isinstance(statement.operands[0], (list, tuple, dict)):
            continue
        elements = dict(_elements(container, statement.operands[0]))

        def taken(operand: Operand, elements: dict[str, Operand] = elements) -> Operand:
            return elements.get(repr(operand), operand)

        body = tuple(
            replace(item, operands=tuple(mapped(operand, taken) for operand in item.operands))
            for item in program.body
        )
        left = [name for name in program.parameters if name != container.name]
        given = [held.name for held in elements.values()]
        fewer = replace(
            program,
            setup=(*program.setup[:at], *program.setup[at + 1 :]),
            parameters=tuple(dict.fromkeys([*left, *given])),
        )
        # What uses the container itself goes.
        yield _with_body(fewer, _closed(body, {container.name}))


def _elements(access: Operand, value: Operand) -> Iterator[tuple[str, Operand]]:
    """What stands at each place of a container, by how the place is written."""
    if isinstance(value, Name):
        yield repr(access), value
    items = value.items() if isinstance(value, dict) else enumerate(parts(value))
    for key, part in items:
        yield from _elements(element(access, key), part)


def _simpler_operands(program: Program, section: str) -> Iterator[Program]:
    statements = getattr(program, section)
    for at, statement in enumerate(statements):
        variants: list[Statement] = []
        if statement.guard:
            variants.append(replace(statement, guard=""))
        variants += [
            replace(statement, text=statement.text.replace(suffix, ""))
            for suffix in (".requires_grad_()", ".detach()", ".conj()")
            if suffix in statement.text
        ]
        for position, operand in enumerate(statement.operands):
            before, after = statement.operands[:position], statement.operands[position + 1 :]
            variants += [
                replace(statement, operands=(*before, simpler, *after))
                for simpler in _smaller(operand)
            ]
        for variant in variants:
            yield replace(program, **{section: (*statements[:at], variant, *statements[at + 1 :])})


def _is_number(operand: Code) -> bool:
    """Whether a number may stand in its place."""
    tensors = operand.text.startswith((*values.NAMES, "{0}, "))
    return not tensors and not is_element(operand)


def _smaller(operand: Operand) -> Iterator[Operand]:
    """Simpler operands."""
    if isinstance(operand, bool) or operand is None:
        return
    if isinstance(operand, int):
        for value in (0, 1, 2, 3):
            if abs(value) < abs(operand) or (operand < 0 <= value):
                yield value
    elif isinstance(operand, float):
        for value in (1, 0.5):
            if operand != value:
                yield value
    elif isinstance(operand, torch.dtype):
        if operand is not torch.float32:
            yield torch.float32
    elif isinstance(operand, Code) and _is_number(operand):
        yield from (0, 1, 2)
    if isinstance(operand, (tuple, list)) and len(operand) > 1:
        for at in range(len(operand)):
            yield type(operand)((*operand[:at], *operand[at + 1 :]))
    if isinstance(operand, dict) and len(operand) > 1:
        for skipped in operand:
            yield {key: value for key, value in operand.items() if key != skipped}
    if isinstance(operand, Code) and operand.text.startswith("{0}, "):
        items = operand.operands
        for at in range(len(items)):
            left = (*items[:at], *items[at + 1 :])
            if left:
                yield Code(", ".join(f"{{{number}}}" for number in range(len(left))), left)
    found = parts(operand)
    for at, part in enumerate(found):
        if isinstance(operand, slice) and part is not None:
            yield rebuilt(operand, (*found[:at], None, *found[at + 1 :]))
        for simpler in _smaller(part):
            yield rebuilt(operand, (*found[:at], simpler, *found[at + 1 :]))


def _simpler_rows(program: Program) -> Iterator[Program]:
    for number, row in enumerate(program.calls):
        for at, value in enumerate(row):
            for simpler in _smaller(value):
                changed: tuple[Any, ...] = (*row[:at], simpler, *row[at + 1 :])
                calls = (*program.calls[:number], changed, *program.calls[number + 1 :])
                yield replace(program, calls=calls)
