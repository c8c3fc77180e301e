"""The wire format: what is written is read back, and garbage is refused."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt_bridge import wire

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
NUMBERS = st.integers(1, (1 << 29) - 1)


@given(NUMBERS, INT64)
def test_integers(number: int, value: int) -> None:
    ((found, raw),) = wire.fields(wire.varint(number, value))
    assert (found, wire.signed(raw)) == (number, value)


@given(st.lists(st.tuples(NUMBERS, st.binary(max_size=300)), max_size=5))
def test_messages(parts: list[tuple[int, bytes]]) -> None:
    data = b"".join(wire.message(number, content) for number, content in parts)
    assert list(wire.fields(data)) == parts
    for number, _ in parts:
        contents = [content for found, content in parts if found == number]
        assert list(wire.messages(data, number)) == contents


@given(st.floats(allow_nan=False))
def test_doubles(value: float) -> None:
    ((_, raw),) = wire.fields(wire.double(2, value))
    assert isinstance(raw, bytes)
    assert struct.unpack("<d", raw) == (value,)


@given(st.binary(max_size=50))
def test_garbage_is_read_or_refused(data: bytes) -> None:
    with suppress(ValueError):
        assert all(number > 0 for number, _ in wire.fields(data))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0a\x05abc", "needs 5 bytes, 3 left"),
        (b"\x08", "end within a number"),
        (b"\x08" + b"\xff" * 11, "more than 64 bits"),
        (b"\x00\x01", "no field has number 0"),
        (b"\x0b", "wire type 3 of field 1"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        list(wire.fields(data))
