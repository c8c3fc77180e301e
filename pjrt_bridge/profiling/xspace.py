"""XSpace, the format that XLA's profilers write: made of spans, and read.

Serialized messages that are joined are one message with the fields of both, so what several
profilers collected becomes one XSpace by adding bytes.

Source: xplane.proto of tsl/profiler/protobuf.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pjrt_bridge import wire
from pjrt_bridge.timeline import Detail, Span


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plane: a thread, a stream, a core.

    Attributes:
        name: of the line.
        spans: in the order of the profile; `track` is the name of the plane.
    """

    name: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Plane:
    """A plane of an XSpace: the host, or a device.

    Attributes:
        name: such as "/device:TPU:0".
        lines: in the order of the profile.
    """

    name: str
    lines: tuple[Line, ...]


def encode(name: str, spans: Iterable[Span]) -> bytes:
    """An XSpace of one plane, with a line for each track."""
    tracks: dict[str, list[Span]] = {}
    for item in spans:
        tracks.setdefault(item.track, []).append(item)
    names = _NameNumbers()
    lines = b"".join(
        wire.message(3, _line(at, track, found, names))
        for at, (track, found) in enumerate(tracks.items(), 1)
    )
    plane = wire.varint(1, 1) + wire.text(2, name) + lines + names.encode()
    return wire.message(1, plane)


class _NameNumbers:
    """Names of events and of details, which events mention by number."""

    def __init__(self) -> None:
        self.events: dict[str, int] = {}
        self.stats: dict[str, int] = {}

    def event(self, name: str) -> int:
        return self.events.setdefault(name, len(self.events) + 1)

    def stat(self, name: str) -> int:
        return self.stats.setdefault(name, len(self.stats) + 1)

    def encode(self) -> bytes:
        # A map's entries are messages of key and value.
        parts = []
        for number, names in ((4, self.events), (5, self.stats)):
            for name, id in names.items():
                value = wire.varint(1, id) + wire.text(2, name)
                parts.append(wire.message(number, wire.varint(1, id) + wire.message(2, value)))
        return b"".join(parts)


def _line(id: int, name: str, spans: Sequence[Span], names: _NameNumbers) -> bytes:
    start = min(item.start for item in spans)
    events = b"".join(
        wire.message(4, _event(item, start, names))
        for item in sorted(spans, key=lambda item: (item.start, -item.end))
    )
    return wire.varint(1, id) + wire.text(2, name) + wire.varint(3, start) + events


def _event(item: Span, line_start: int, names: _NameNumbers) -> bytes:
    proto = wire.varint(1, names.event(item.name))
    # Picoseconds.
    proto += wire.varint(2, (item.start - line_start) * 1000)
    proto += wire.varint(3, (item.end - item.start) * 1000)
    for name, value in item.details.items():
        proto += wire.message(4, wire.varint(1, names.stat(name)) + _stat(value))
    return proto


def _stat(value: Detail) -> bytes:
    if isinstance(value, str):
        return wire.text(5, value)
    return wire.double(2, value) if isinstance(value, float) else wire.varint(4, value)


def decode(data: bytes) -> tuple[Plane, ...]:
    """The planes of an XSpace.

    Raises:
        ValueError: it is none.
    """
    return tuple(_plane(content) for content in wire.messages(data, 1))


@dataclass
class _Metadata:
    events: dict[int, str] = field(default_factory=dict)
    stats: dict[int, str] = field(default_factory=dict)


def _plane(data: bytes) -> Plane:
    names = _Metadata()
    for number, into in ((4, names.events), (5, names.stats)):
        for entry in wire.messages(data, number):
            into.update(_named(entry))
    (name,) = list(_texts(data, 2))[-1:] or ("",)
    return Plane(name, tuple(_decoded_line(line, name, names) for line in wire.messages(data, 3)))


def _named(entry: bytes) -> Iterator[tuple[int, str]]:
    for value in wire.messages(entry, 2):
        ids = [wire.signed(item) for number, item in wire.fields(value) if number == 1]
        # A display name is what people are meant to read.
        shown = [*_texts(value, 2), *(text for text in _texts(value, 4) if text)]
        yield (ids or [0])[-1], (shown or [""])[-1]


def _decoded_line(data: bytes, plane: str, names: _Metadata) -> Line:
    start, shown = 0, [""]
    for number, value in wire.fields(data):
        if number == 3:
            start = wire.signed(value)
        elif number in (2, 11) and isinstance(value, bytes) and value:
            shown.append(value.decode(errors="replace"))
    return Line(
        shown[-1],
        tuple(_decoded_event(event, start, plane, names) for event in wire.messages(data, 4)),
    )


def _decoded_event(data: bytes, line_start: int, plane: str, names: _Metadata) -> Span:
    id = offset = duration = 0
    details: dict[str, Detail] = {}
    for number, value in wire.fields(data):
        if number == 1:
            id = wire.signed(value)
        elif number == 2:
            offset = wire.signed(value)
        elif number == 3:
            duration = wire.signed(value)
        elif number == 4 and isinstance(value, bytes):
            details.update(_detail(value, names))
    start = line_start + offset // 1000
    end = line_start + (offset + duration) // 1000
    return Span(names.events.get(id, f"event {id}"), plane, start, end, details)


def _detail(data: bytes, names: _Metadata) -> Iterator[tuple[str, Detail]]:
    name, found = "", None
    for number, value in wire.fields(data):
        if number == 1:
            name = names.stats.get(wire.signed(value), f"stat {value!r}")
        elif number == 2 and isinstance(value, bytes):
            (found,) = struct.unpack("<d", value)
        elif number == 3 and isinstance(value, int):
            found = value
        elif number == 4:
            found = wire.signed(value)
        elif number == 5 and isinstance(value, bytes):
            found = value.decode(errors="replace")
        elif number == 7:
            found = names.stats.get(wire.signed(value), "")
    if found is not None:
        yield name, found


def _texts(data: bytes, wanted: int) -> Iterator[str]:
    for content in wire.messages(data, wanted):
        yield content.decode(errors="replace")
