"""Limits on the nesting of StableHLO text and on its size when inlined, checked before parsing.

MLIR's parser and printer, and compilers behind them, call themselves for each level of nesting, and
end the process where the stack does. Levels are brackets, aliases (`#x = ...`, `!x = ...`) that
refer to aliases, and functions that call functions. Compilers inline calls, and printers aliases,
so a few lines can stand for more than any memory holds; that is bounded, too.

The text is read as bytes, without its strings and comments: a gigabyte takes some seconds.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo.program import lexing, numbers

LEVELS = 512
"""Levels of nesting that are accepted. With twice as many, plugins' compilers overflow a stack of
8 MiB, which is what threads mostly have."""

EXPANSION = 2_000_000_000
"""Bytes of text that a program may have when calls and aliases are replaced by what they name."""

_CHUNK = 1 << 18
# Each begins with a literal, which the engine looks for many times faster than for a choice.
# Nothing has to stand at the begin of a line, and a key of an attribute that is called `module` is
# none.
_DEFINITIONS = (
    re.compile(rb"(#" + lexing.ALIAS + rb")\s*+="),
    re.compile(rb"(!" + lexing.ALIAS + rb")\s*+="),
    re.compile(rb"module\b()(?=\s*+(?:@" + lexing.SYMBOL + rb")?+\s*+(?:attributes\b\s*+)?+\{)"),
    re.compile(
        rb"func\.func\b\s*+(?:(?:private|public|nested)\b\s*+)?+(@" + lexing.SYMBOL + rb")\s*+\("
    ),
)
_REFERENCES = (
    re.compile(rb"@" + lexing.SYMBOL),
    re.compile(rb"#" + lexing.ALIAS),
    re.compile(rb"!" + lexing.ALIAS),
)
_LOCATION = re.compile(rb"\s*+loc\b")

_DELTAS = bytes(1 if sign in b"([{<" else 255 if sign in b")]}>" else 0 for sign in range(256))
"""For each byte by how much it changes the level, as a signed byte."""


@dataclass
class _Definition:
    """An alias or function; what stands before all of these is one, too.

    Attributes:
        name: with its first character, `@`, `#` or `!`.
        size: bytes of its text.
        is_location: it stands for a location, which is printed once where it is shared.
        references: for each name in it at how many brackets it stands, and how often.
    """

    name: bytes
    size: int = 0
    is_location: bool = False
    references: dict[bytes, tuple[int, int]] = field(default_factory=dict)


def check(text: bytes, what: str, *, brackets_alone: bool = False) -> None:
    """Check that text can be parsed, printed and compiled without overflowing a stack.

    Args:
        text: StableHLO text in UTF-8; what is no MLIR at all may pass.
        what: name of the input in error messages.
        brackets_alone: do not check functions and aliases.

    Raises:
        ProgramError: too many levels of nesting, a function or alias that refers to itself, text
            that becomes too large, or numbers that are.
    """
    data = lexing.plain(text)
    numbers.check(data, what)
    if brackets_alone:
        _brackets(data, what, [])
        return
    definitions = sorted(
        (found for pattern in _DEFINITIONS for found in pattern.finditer(data)),
        key=lambda found: found.start(),
    )
    starts = [0, *(found.start() for found in definitions)]
    names = [b"", *(found[1] for found in definitions)]
    own = {found.end(1) for found in definitions}
    # Of several with one name, as nested modules may have, each counts.
    parts: dict[bytes, _Definition] = {name: _Definition(name) for name in names}
    for name, start, end in zip(names, starts, [*starts[1:], len(data)], strict=True):
        parts[name].size += end - start
    for found in definitions:
        if _LOCATION.match(data, found.end()):
            parts[found[1]].is_location = True
    references = [
        (found.start(), found[0])
        for pattern in _REFERENCES
        for found in pattern.finditer(data)
        if found[0] in parts and found.end() not in own
    ]
    levels = _brackets(data, what, [*starts, *(at for at, _ in references)])
    bases, inside = levels[: len(starts)], levels[len(starts) :]
    for (at, name), level in zip(references, inside, strict=True):
        index = bisect_right(starts, at) - 1
        known = parts[names[index]].references
        depth, count = known.get(name, (0, 0))
        known[name] = (max(depth, level - bases[index]), count + 1)
    _check_references(parts, what)


def check_regions(module: Any, what: str) -> None:
    """Check how deep the regions of a module are nested, without recursion.

    Args:
        module: of the bindings.
        what: name of the input in error messages.

    Raises:
        ProgramError: too deep.
    """
    deepest = 0
    open_ = [(module.operation, 1)]
    while open_:
        operation, depth = open_.pop()
        deepest = max(deepest, depth)
        open_ += [
            (inner, depth + 1)
            for region in operation.regions
            for block in region
            for inner in block.operations
            if len(inner.operation.regions)
        ]
    # In text a region takes two brackets.
    if 2 * deepest > LEVELS:
        raise ProgramError(
            f"{what}: found {deepest} levels of nested regions, expected {LEVELS // 2} at most"
        )


def _brackets(data: bytes, what: str, places: list[int]) -> list[int]:
    """How many brackets are open at some places.

    Raises:
        ProgramError: more than `LEVELS` somewhere.
    """
    wanted = np.asarray(places, np.int64)
    order = np.argsort(wanted, kind="stable")
    sorted_ = wanted[order]
    found = np.zeros(len(places), np.int64)
    level = lowest = 0
    for start in range(0, len(data), _CHUNK):
        deltas = data[start : start + _CHUNK].translate(_DELTAS)
        levels = np.cumsum(np.frombuffer(deltas, np.int8), dtype=np.int32)
        levels += level
        # A closing bracket that nothing opened is where MLIR's parser stops.
        if levels.max() - min(levels.min(), lowest) > LEVELS:
            floor = np.minimum.accumulate(np.minimum(levels, lowest))
            over = levels - floor > LEVELS
            if over.any():
                line = 1 + data.count(b"\n", 0, start + int(over.argmax()))
                raise ProgramError(
                    f"{what}: line {line}: found more than {LEVELS} levels of nested brackets, "
                    f"expected {LEVELS} at most"
                )
        first, last = np.searchsorted(sorted_, [start, start + len(levels)])
        here = order[first:last]
        found[here] = levels[wanted[here] - start]
        level, lowest = int(levels[-1]), min(lowest, int(levels.min()))
    open_: list[int] = found.tolist()
    return open_


def _check_references(parts: Mapping[bytes, _Definition], what: str) -> None:
    """Follow what refers to what.

    Raises:
        ProgramError: something refers to itself, is nested too deeply, or becomes too large.
    """
    known: dict[bytes, tuple[int, int]] = {}
    locations = {part.name for part in parts.values() if part.is_location}
    for root in parts:
        path: list[bytes] = [root]
        open_: dict[bytes, Any] = {}
        while path:
            name = path[-1]
            if name in known:
                path.pop()
                continue
            waiting = open_.get(name)
            if waiting is None:
                waiting = open_[name] = iter(parts[name].references)
            following = next((other for other in waiting if other not in known), None)
            if following is not None:
                if following in open_:
                    raise ProgramError(
                        f"{what}: {_shown(following)} refers to itself, found "
                        f"{_route(path, following)}; expected functions and aliases that do not"
                    )
                path.append(following)
                continue
            known[name] = _measured(parts[name], known, locations, what)
            del open_[name]
            path.pop()


def _measured(
    part: _Definition,
    known: Mapping[bytes, tuple[int, int]],
    locations: Set[bytes],
    what: str,
) -> tuple[int, int]:
    """The levels of nesting and the size of a part with all that it refers to."""
    depth, size = 0, part.size
    for name, (level, count) in part.references.items():
        below, becomes = known[name]
        depth = max(depth, level + 1 + below)
        # A location that is shared is printed once, and not inlined.
        size += becomes * count if name not in locations else 0
    if depth > LEVELS:
        raise ProgramError(
            f"{what}: {_shown(part.name)}: found {depth} levels of nested calls, aliases and "
            f"brackets, expected {LEVELS} at most"
        )
    if size > max(EXPANSION, part.size):
        raise ProgramError(
            f"{what}: {_shown(part.name)}: found {size} bytes of text once calls and aliases are "
            f"replaced by what they name, expected {EXPANSION} at most"
        )
    return depth, size


def _shown(name: bytes) -> str:
    return name.decode(errors="replace") or "the module"


def _route(path: list[bytes], end: bytes) -> str:
    names = [_shown(name) for name in [*path[path.index(end) :], end]]
    return " -> ".join(names if len(names) <= 6 else [*names[:3], "...", *names[-2:]])
