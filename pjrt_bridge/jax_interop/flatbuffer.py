"""Reading flatbuffers of any schema: each offset is checked before it is followed.

A table knows its fields by their numbers; one that is absent has its default. Vectors and texts are
copied, so nothing of the bytes is kept.

Source: the FlatBuffers project, "FlatBuffer Internals".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

_FURTHEST_VECTOR = 1 << 24
"""Elements of a vector of tables or texts; more are a sign of altered bytes."""


class Malformed(ValueError):
    """The bytes are no flatbuffer of the expected schema."""


def root(data: bytes) -> Table:
    """The outermost table.

    Raises:
        Malformed: the bytes end before it does.
    """
    return Table(data, _number("<I", data, 0))


class Table:
    """One table. Every method raises `Malformed` where the bytes end too early.

    Args:
        data: all bytes.
        at: where the table begins.
    """

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - _number("<i", data, at)
        self._size = _number("<H", data, self._fields)

    def uint8(self, field: int) -> int:
        """A byte or an enumerator; 0 by default."""
        return self._scalar("<B", field)

    def uint16(self, field: int) -> int:
        """A 16-bit number; 0 by default."""
        return self._scalar("<H", field)

    def uint32(self, field: int) -> int:
        """A 32-bit number; 0 by default."""
        return self._scalar("<I", field)

    def text(self, field: int) -> str:
        """A text; empty by default."""
        at = self._follow(field)
        return "" if at is None else _text(self._data, at)

    def bytes(self, field: int) -> bytes:
        """A vector of bytes; empty by default."""
        at = self._follow(field)
        return b"" if at is None else _counted(self._data, at, 1)

    def uint16s(self, field: int) -> tuple[int, ...]:
        """A vector of 16-bit numbers; empty by default."""
        return self._numbers("H", 2, field)

    def uint32s(self, field: int) -> tuple[int, ...]:
        """A vector of 32-bit numbers; empty by default."""
        return self._numbers("I", 4, field)

    def table(self, field: int) -> Table:
        """A table, which has to be there."""
        at = self._follow(field)
        if at is None:
            raise Malformed(f"field {field} is missing")
        return Table(self._data, at)

    def tables(self, field: int) -> tuple[Table, ...]:
        """A vector of tables; empty by default."""
        return self._each(field, lambda at: Table(self._data, at))

    def texts(self, field: int) -> tuple[str, ...]:
        """A vector of texts; empty by default."""
        return self._each(field, lambda at: _text(self._data, at))

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        offset = _number("<H", self._data, self._fields + entry) if entry < self._size else 0
        return self._at + offset if offset else None

    def _scalar(self, form: str, field: int) -> int:
        place = self._place(field)
        return 0 if place is None else _number(form, self._data, place)

    def _follow(self, field: int) -> int | None:
        place = self._place(field)
        return None if place is None else place + _number("<I", self._data, place)

    def _numbers(self, form: str, size: int, field: int) -> tuple[int, ...]:
        at = self._follow(field)
        content = b"" if at is None else _counted(self._data, at, size)
        return struct.unpack(f"<{len(content) // size}{form}", content)

    def _each(self, field: int, make: Callable[[int], _T]) -> tuple[_T, ...]:
        at = self._follow(field)
        if at is None:
            return ()
        count = len(_counted(self._data, at, 4)) // 4
        if count > _FURTHEST_VECTOR:
            raise Malformed(f"found a vector of {count} elements")
        places = range(at + 4, at + 4 + 4 * count, 4)
        return tuple(make(place + _number("<I", self._data, place)) for place in places)


def _number(form: str, data: bytes, at: int) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(form):
        raise Malformed(f"the bytes end at {len(data)}, needed {at + struct.calcsize(form)}")
    found: int = struct.unpack_from(form, data, at)[0]
    return found


def _counted(data: bytes, at: int, size: int) -> bytes:
    end = at + 4 + size * _number("<I", data, at)
    if end > len(data):
        raise Malformed(f"the bytes end at {len(data)}, needed {end}")
    return data[at + 4 : end]


def _text(data: bytes, at: int) -> str:
    try:
        return _counted(data, at, 1).decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"found no text at {at}: {error}") from None
