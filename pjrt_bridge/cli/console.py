"""Shared parts of the commands: printing, and reading `--option name=value`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import OptionError, PjrtBridgeError


def out() -> Console:
    """The console of standard output; made per command so that a redirection is seen."""
    return Console(highlight=False, soft_wrap=True)


def fail(message: str) -> None:
    """Say on standard error what went wrong, unwrapped so that it can be searched and copied."""
    print(f"error: {message}", file=sys.stderr)


class CodeFailed(Exception):
    """What a function that the user named raised; the text is the message to show."""


@contextmanager
def calling(target: str) -> Iterator[None]:
    """A context in which exceptions other than the bridge's are the named function's.

    Raises:
        CodeFailed: there is one; its text names the function.
    """
    try:
        yield
    except PjrtBridgeError:
        raise
    except Exception as error:
        raise CodeFailed(f"{target} raised {type(error).__name__}: {error}") from error


def note(message: str) -> None:
    """Say on standard error what a user may want to know of what was done."""
    print(f"note: {message}", file=sys.stderr)


def print_json(data: Any) -> None:
    """Print data for programs: plain JSON, indented."""
    print(json.dumps(data, indent=2, default=str))


def facts(rows: Mapping[str, object]) -> Text:
    """Names and values, one pair a line; never folded, so that paths can be copied."""
    width = max(map(len, rows), default=0)
    lines = [
        Text.assemble("  ", (name.ljust(width), "dim"), f"  {value}")
        for name, value in rows.items()
    ]
    return Text("\n").join(lines)


def columns(*names: str) -> Table:
    """An empty indented table; cells too long for the terminal are folded."""
    table = Table(box=None, padding=(0, 0, 0, 2), pad_edge=True, header_style="dim")
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def named_values(values: Mapping[str, NamedValue]) -> str:
    """Options or attributes as `name=value` pairs."""
    return ", ".join(f"{name}={plain(value)}" for name, value in values.items()) or "none"


def plain(value: NamedValue) -> str:
    """An option's or attribute's value as `--option` would take it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    return json.dumps(list(value))


def parse_options(pairs: Sequence[str]) -> dict[str, NamedValue]:
    """Client create options from `name=value` texts.

    A value that reads as a JSON number, `true`, `false`, text in quotes or a list is that;
    anything else is text as it stands.

    Raises:
        OptionError: no `=`, or no name before it.
    """
    options: dict[str, NamedValue] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise OptionError(f"--option: found {pair!r}, expected name=value")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options
