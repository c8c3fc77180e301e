"""What jax.export wrote, read without JAX: files, damaged files, anything."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.exported import Tree
from pjrt_bridge.jax_interop.artifact import Aval, read
from tests.fixtures.places import AFFINE, GRAM

F32 = dtypes.of("float32")
DATA = AFFINE.read_bytes()


def leaf(index: int) -> Tree:
    return Tree("leaf", leaf=index)


def field(data: bytes, number: int) -> int:
    """Where the vtable of the outermost table says where a field is (FlatBuffer Internals)."""
    (table,) = struct.unpack_from("<I", data)
    (back,) = struct.unpack_from("<i", data, table)
    return int(table - back + 4 + 2 * number)


def without(data: bytes, *numbers: int) -> bytes:
    changed = bytearray(data)
    for number in numbers:
        struct.pack_into("<H", changed, field(data, number), 0)
    return bytes(changed)


def scalar(data: bytes, number: int, value: int) -> bytes:
    changed = bytearray(data)
    (table,) = struct.unpack_from("<I", data)
    (offset,) = struct.unpack_from("<H", data, field(data, number))
    struct.pack_into("<H", changed, table + offset, value)
    return bytes(changed)


def test_a_function_with_nested_arguments() -> None:
    found = read(DATA)
    assert (found.name, found.platforms, found.devices) == ("affine", ("cpu",), 1)
    layer = Tree("dict", items=(leaf(0), leaf(1), leaf(2)), keys=("b", "unused", "w"))
    assert found.inputs == Tree(
        "tuple",
        items=(
            Tree("tuple", items=(layer, leaf(3))),
            Tree("dict", items=(leaf(4),), keys=("steps",)),
        ),
    )
    more = Tree("tuple", items=(leaf(0), Tree("none")))
    assert found.outputs == Tree("dict", items=(more, leaf(1)), keys=("more", "y"))
    assert found.kept == (0, 2, 3, 4)
    assert found.avals == (
        Aval(F32, ("4",)),
        Aval(dtypes.of("int8"), ("2",)),
        Aval(F32, ("3", "4")),
        Aval(F32, ("2", "3")),
        Aval(dtypes.of("int32"), ()),
    )
    assert found.module.startswith(b"ML\xefR")


def test_symbolic_sizes_and_several_platforms() -> None:
    found = read(GRAM.read_bytes())
    assert found.platforms == ("cpu", "tpu")
    assert [aval.shape for aval in found.avals] == [("b", "3"), ("2*b - 1",)]


def test_types_as_they_were_written_before_arguments_shared_them() -> None:
    unique_avals, in_avals_idxs = 19, 22
    older = without(DATA, unique_avals, in_avals_idxs)
    assert older != DATA
    assert read(older) == read(DATA)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the bytes end at 0"),
        (DATA[:3], "the bytes end at 3"),
        (DATA[:-40], "the bytes end at"),
        (b"no flatbuffer at all", "the bytes end at 20"),
        (without(DATA, 2), "field 2 is missing"),
        (scalar(DATA, 14, 12), "calling convention: found 12, expected 9 or 10"),
        (without(DATA, 14), "calling convention: found 0"),
        (without(DATA, 19, 22, 3), "found 0 types and parameters .* for 5 arguments"),
    ],
)
def test_what_is_no_such_artifact(data: bytes, message: str) -> None:
    with pytest.raises(ProgramError, match=f"artifact of jax.export.*{message}"):
        read(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProgramError):
        read(data)


@settings(max_examples=300)
@given(st.integers(0, len(DATA) - 1), st.integers(0, 255), st.integers(0, 3))
def test_an_altered_artifact_is_read_or_refused(at: int, value: int, more: int) -> None:
    changed = bytearray(DATA)
    for place in range(at, min(at + 1 + more, len(DATA))):
        changed[place] = value
    try:
        found = read(bytes(changed))
    except ProgramError:
        return
    assert len(found.inputs.leaves) == len(found.avals)
