"""Formatting for people: one-line texts, counts, lists, bytes, times and percentages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def printable(text: str) -> str:
    """One line that is safe to print: runs of white space as one blank, control codes escaped."""
    return "".join(
        # Also halves of surrogate pairs, which no encoding takes, and marks that reverse the line.
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in " ".join(text.split())
    )


def clip(text: str, length: int) -> str:
    """A printable line of at most so many characters, with dots where something is missing.

    What stands in backticks, such as a setting to be copied, is there whole or not at all.
    """
    line = printable(text)
    if len(line) <= length:
        return line
    short = line[: max(0, length - 3)]
    if short.count("`") % 2 and "`" in line[len(short) :]:
        short = short[: short.rindex("`")]
    return short.rstrip(" .") + "..."


def plural(number: int, singular: str) -> str:
    """A number with its noun."""
    return f"{number} {singular}" if number == 1 else f"{number} {singular}s"


def times(number: int) -> str:
    """How often."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def listed(items: Sequence[str], most: int, noun: str = "", between: str = ", ") -> str:
    """The first few, and how many more there are."""
    rest = len(items) - most
    more = [f"+{plural(rest, f'more {noun}') if noun else f'{rest} more'}"] if rest > 0 else []
    return between.join([*items[:most], *more])


def byte_size(count: int) -> str:
    """A number of bytes to three digits, in decimal units."""
    return _scaled(count, ("B", "kB", "MB", "GB", "TB", "PB"))


def operation_count(count: float) -> str:
    """A number of arithmetic operations to three digits."""
    return _scaled(count, ("", "kilo", "mega", "giga", "tera", "peta", "exa")).rstrip()


def duration(seconds: float) -> str:
    """A time to three digits, in seconds or a fraction of them."""
    if seconds == 0 or seconds >= 0.9995:
        return _scaled(seconds, ("s",))
    return _scaled(seconds * 1e6, ("us", "ms"))


def _scaled(value: float, units: Sequence[str]) -> str:
    # What would be rounded to four digits belongs to the next unit.
    unit = 0
    while value >= 999.5 and unit + 1 < len(units):
        value /= 1000
        unit += 1
    number = f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"
    return f"{number} {units[unit]}"


def share(part: int, whole: int) -> str:
    """A percentage that says 100 only of all and 0 only of nothing."""
    if part in (0, whole):
        return "100 %" if part else "0 %"
    percent = min(max(100 * part / whole, 0.1), 99.9)
    return f"{percent:.1f} %" if percent < 1 or percent > 99 else f"{percent:.0f} %"


def counted(operators: Iterable[tuple[str, int]]) -> list[str]:
    """Operators with how often they occur, the most frequent first."""
    ordered = sorted(operators, key=lambda item: (-item[1], item[0]))
    return [
        f"{printable(name)} x{number}" if number > 1 else printable(name)
        for name, number in ordered
    ]
