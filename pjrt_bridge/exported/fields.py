"""Values of a JSON file of unknown origin, each with its place: read with a type, or refused."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pjrt_bridge.errors import PjrtBridgeError, SavedModelError

T = TypeVar("T")

LARGEST = (1 << 63) - 1
"""Of numbers: those that NumPy and plugins take as sizes."""

_LONGEST = 100_000
"""Characters of a text."""


class JsonField:
    """One value.

    Args:
        file: that it is in.
        value: as the JSON reader gave it.
        path: its place in the file, such as `model.inputs[0].shape`.
    """

    __slots__ = ("file", "path", "value")

    def __init__(self, file: Path, value: Any, path: str = "") -> None:
        self.file = file
        self.value = value
        self.path = path

    def error(self, needed: str) -> SavedModelError:
        """An exception that says what was found here, and what is needed."""
        found = reprlib.repr(self.value)
        return SavedModelError(f"{self.file}: field {self.path!r}: found {found}, needed {needed}")

    def __getitem__(self, name: str) -> JsonField:
        """A member of an object."""
        found = self.find(name)
        if found is None:
            place = f"field {self.path!r}: " if self.path else "field "
            raise SavedModelError(f"{self.file}: {place}{name!r} is missing")
        return found

    def find(self, name: str) -> JsonField | None:
        """A member of an object that may be missing."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        if name not in self.value:
            return None
        path = f"{self.path}.{name}" if self.path else name
        return JsonField(self.file, self.value[name], path)

    def members(self) -> dict[str, JsonField]:
        """All members of an object whose names the file chooses."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        return {
            JsonField(self.file, name, f"{self.path} (a name)").text(): JsonField(
                self.file, value, f"{self.path}[{name!r:.80}]"
            )
            for name, value in self.value.items()
        }

    def items(self, count: int | None = None) -> list[JsonField]:
        """The elements of a list."""
        if not isinstance(self.value, list) or count not in (None, len(self.value)):
            raise self.error("a list" if count is None else f"a list of {count}")
        return [
            JsonField(self.file, value, f"{self.path}[{index}]")
            for index, value in enumerate(self.value)
        ]

    def text(self) -> str:
        """A text that can be written in UTF-8."""
        if not isinstance(self.value, str) or len(self.value) > _LONGEST:
            raise self.error(f"a text of at most {_LONGEST} characters")
        try:
            self.value.encode()
        except UnicodeEncodeError:
            raise self.error("a text in Unicode") from None
        return self.value

    def optional_text(self) -> str | None:
        """A text, or null."""
        return None if self.value is None else self.text()

    def choice(self, *names: T) -> T:
        """One of some texts."""
        for name in names:
            if isinstance(self.value, str) and self.value == name:
                return name
        raise self.error(f"one of {', '.join(map(repr, names))}")

    def number(self, least: int = 0, most: int = LARGEST) -> int:
        """An integer within limits, both included."""
        if type(self.value) is not int or not least <= self.value <= most:
            raise self.error(f"an integer from {least} to {most}")
        return self.value

    def optional_number(self) -> int | None:
        """An integer from 0 up, or null."""
        return None if self.value is None else self.number()

    def numbers(self) -> tuple[int, ...]:
        """A list of integers from 0 up, such as a shape."""
        return tuple(item.number() for item in self.items())

    def scalar(self) -> bool | int | float | str | None:
        """A number, a text, a truth value or null."""
        if self.value is None or isinstance(self.value, (bool, float)):
            return self.value
        return self.text() if isinstance(self.value, str) else self.number(-LARGEST - 1)

    def parsed(self, parse: Callable[[Any], T]) -> T:
        """What a function makes of the value; what it refuses is refused here."""
        try:
            return parse(self.value)
        except (PjrtBridgeError, ValueError, TypeError, LookupError, RecursionError) as error:
            raise SavedModelError(f"{self.file}: field {self.path!r}: {error}") from error
