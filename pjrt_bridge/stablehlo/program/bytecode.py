"""The header and sections of MLIR bytecode, checked before the bindings read them.

Altered bytecode ends the process in two ways, found by fuzzing jaxlib 0.10.2:

* MLIR puts strings of the input (the producer, names of dialects and operations) into its
  diagnostics as they are; the bindings make Python texts of these, and abort where one is no UTF-8.
* MLIR makes a table as long as the section of offsets announces, and writes to it as often as the
  groups in that section say, also beyond its end.

So both are checked first. MLIR is known to report other errors in bytecode by itself.

Source: MLIR's documentation, "MLIR Bytecode Format": the header and the sections.
"""

from __future__ import annotations

from pjrt_bridge.errors import ProgramError

MAGIC = b"ML\xefR"
"""First bytes of MLIR bytecode, and so of portable artifacts."""
PRODUCER = b"StableHLO_v"
"""Start of a portable artifact's producer string, after `MAGIC` and a one-byte format version."""

_STRINGS, _DIALECTS, _OFFSETS = 0, 1, 3
_ALIGNED = 0x80
_PADDING = 0xCB


class _BytecodeReader:
    def __init__(self, data: bytes, what: str, start: int = len(MAGIC)) -> None:
        self.data = data
        self.at = start
        self.what = what

    def bad(self, why: str) -> ProgramError:
        return ProgramError(f"{self.what}: {why} at byte {self.at} of {len(self.data)}")

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise self.bad("it is truncated")
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        """A variable-width integer: zeros at the low end of its first byte count more bytes."""
        first = self.byte()
        more = (first & -first).bit_length() - 1 if first else 8
        rest = self.take(more)
        whole = int.from_bytes(bytes([first]) + rest, "little")
        return whole >> (more + 1)

    def count(self, of: str) -> int:
        """A number of things, each of which takes a byte or more."""
        found = self.number()
        if found > len(self.data):
            raise self.bad(f"{found} {of} are announced")
        return found

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise self.bad(f"it is truncated: {count} bytes are announced")
        self.at += count
        return self.data[self.at - count : self.at]

    def section(self) -> tuple[int, bytes]:
        kind = self.byte()
        length = self.number()
        if kind & _ALIGNED:
            self.number()
            while self.at < len(self.data) and self.data[self.at] == _PADDING:
                self.at += 1
        return kind & ~_ALIGNED, self.take(length)


def is_artifact(data: bytes) -> bool:
    """Whether bytes start as a portable artifact does."""
    producer = data[len(MAGIC) + 1 :]
    return data.startswith(MAGIC) and producer.startswith(PRODUCER)


def check(data: bytes, what: str) -> None:
    """Check those parts of bytecode that MLIR reads without checks of its own.

    Args:
        data: starts with `MAGIC`.
        what: name of the input in error messages.

    Raises:
        ProgramError: truncated, strings that are no UTF-8, or counts that contradict each other.
    """
    reader = _BytecodeReader(data, what)
    reader.number()
    end = data.find(b"\0", reader.at)
    if end < 0:
        raise reader.bad("the producer's name has no end")
    _check_text(data[reader.at : end], f"{what}: the producer's name")
    reader.at = end + 1
    while reader.at < len(data):
        kind, content = reader.section()
        if kind in _CHECKS:
            _CHECKS[kind](_BytecodeReader(content, what, start=0))


def _check_strings(reader: _BytecodeReader) -> None:
    count = reader.count("strings")
    # Lengths come in the opposite order of the strings, whose ends they count.
    lengths = [reader.number() for _ in range(count)]
    for length in reversed(lengths):
        _check_text(reader.take(length), f"{reader.what}: a string")


def _check_dialects(reader: _BytecodeReader) -> None:
    for _ in range(reader.count("dialects")):
        # The lowest bit of a name says that a version follows.
        if reader.number() & 1:
            reader.section()
    if reader.at < len(reader.data):
        reader.count("names of operations")


def _check_offsets(reader: _BytecodeReader) -> None:
    attributes, types = reader.count("attributes"), reader.count("types")
    for announced in (attributes, types):
        found = 0
        while found < announced:
            reader.number()
            count = reader.count("entries of a dialect")
            for _ in range(count):
                reader.number()
            found += count
        if found > announced:
            raise reader.bad(f"{found} attributes or types, where {announced} are announced")


_CHECKS = {_STRINGS: _check_strings, _DIALECTS: _check_dialects, _OFFSETS: _check_offsets}


def _check_text(text: bytes, what: str) -> None:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise ProgramError(f"{what} is no UTF-8: {text[:40]!r}") from None
