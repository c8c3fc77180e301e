"""Compiled programs that go through bytes, into other processes and back."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt_bridge.errors import PjrtBridgeError, PjrtError, ProgramError, SignatureMismatch
from pjrt_bridge.runtime import BufferState, Client, CompileOptions
from pjrt_bridge.runtime.compile.serialized import Header, pack, unpack
from tests import programs
from tests.conftest import Census
from tests.plugins import run_python

ONES = np.ones(64, np.float32)


@pytest.fixture(scope="module")
def blob(client: Client) -> bytes:
    return client.compile(programs.ALIASED_ADD).serialize()


def test_the_same_program(no_leaks: Census, client: Client, blob: bytes) -> None:
    for data in (blob, bytearray(blob), memoryview(blob)):
        again = client.deserialize(data)
        assert repr(again) == "<Executable 'add' (f32[64], f32[64]) -> (f32[64])>"
        mine = client.put(ONES, copy=True)
        (result,) = again(mine, ONES)
        assert (result.to_numpy() == 2).all()
        assert mine.state is BufferState.DONATED
        with pytest.raises(SignatureMismatch):
            again(ONES, np.ones(64, np.int32))
        assert again.cost()["flops"] == 64


def test_what_was_loaded_can_be_written_again(client: Client, blob: bytes) -> None:
    again = client.deserialize(client.deserialize(bytearray(blob)).serialize())
    (result,) = again(client.put(ONES, copy=True), ONES)
    assert (result.to_numpy() == 2).all()


def test_in_another_process(tmp_path: Path, blob: bytes) -> None:
    path = tmp_path / "add.bin"
    path.write_bytes(blob)
    printed = run_python(
        """
        import sys, pathlib
        client = cpu_plugin().client({"cpu_device_count": 1})
        add = client.deserialize(pathlib.Path(sys.argv[1]).read_bytes())
        ones = np.ones(64, np.float32)
        print(float(add(ones, ones)[0].to_numpy().sum()))
        try:
            add(ones, np.ones(64, np.int32))
        except SignatureMismatch as error:
            print(error)
        pathlib.Path(sys.argv[1]).write_bytes(add.serialize())
        """,
        str(path),
    )
    assert printed.splitlines() == [
        "128.0",
        "argument 1 of executable 'add': found i32[64], expected f32[64]",
    ]
    assert unpack(path.read_bytes())[0] == unpack(blob)[0]


def test_portable_programs_stay_portable(pair: Client) -> None:
    compiled = pair.compile(programs.ADD, options=CompileOptions(portable=True))
    again = pair.deserialize(compiled.serialize())
    assert again.portable
    there = pair.put(ONES, pair.devices[1])
    (result,) = again.execute([there, there], device=pair.devices[1])
    assert result.device is pair.devices[1]


def test_a_client_without_the_devices(client: Client, pair: Client) -> None:
    options = CompileOptions(device_assignment=[[1]])
    blob = pair.compile(programs.ADD, options=options).serialize()
    assert pair.deserialize(blob).devices == pair.devices[1:]
    with pytest.raises(PjrtError, match="device_id 1"):
        client.deserialize(blob)


@pytest.mark.parametrize("data", [b"", b"PJRTBRX1", b"\x7fELF", b"x" * 100, b"PJRTBRX1" * 9])
def test_bytes_of_something_else(client: Client, data: bytes) -> None:
    with pytest.raises(ProgramError):
        client.deserialize(data)


@pytest.mark.parametrize("data", ["text", None, 7, [1, 2]])
def test_no_bytes(client: Client, data: Any) -> None:
    with pytest.raises(ProgramError, match="expected bytes"):
        client.deserialize(data)


@pytest.mark.parametrize("keep", [0, 7, 8, 39, 40, 47, 48, 100, -1])
def test_truncated(client: Client, blob: bytes, keep: int) -> None:
    with pytest.raises(ProgramError):
        client.deserialize(blob[:keep])


@given(data=st.data())
def test_altered(client: Client, blob: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(blob) - 1))
    changed = bytearray(blob)
    changed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProgramError):
        client.deserialize(bytes(changed))


def test_another_platform(client: Client, blob: bytes) -> None:
    header, body = unpack(blob)
    other = pack(Header(header.name, "tpu v5", header.portable, header.signature), body)
    with pytest.raises(ProgramError, match="made for 'tpu v5', this client runs 'cpu"):
        client.deserialize(other)


def test_the_plugin_checks_its_own_part(client: Client, blob: bytes) -> None:
    header, body = unpack(blob)
    for bad in (b"", b"garbage", body[: len(body) // 2], body[::-1]):
        with pytest.raises(PjrtError, match="DeserializeAndLoad"):
            client.deserialize(pack(header, bad))


def sealed(header: bytes, *, length: int | None = None) -> bytes:
    """A container with a right checksum around any header."""
    body = struct.pack("<Q", len(header) if length is None else length) + header
    return b"PJRTBRX1" + hashlib.sha256(body).digest() + body


@pytest.mark.parametrize(
    "data",
    [
        sealed(b""),
        sealed(b"not json"),
        sealed(b"\xff\xfe"),
        sealed(b"[]"),
        sealed(b"{}"),
        sealed(json.dumps({"name": "x", "colour": "red"}).encode()),
        sealed(b"{}", length=1 << 60),
        b"PJRTBRX1" + hashlib.sha256(b"").digest(),
    ],
    ids=range(8),
)
def test_well_sealed_nonsense(client: Client, data: bytes) -> None:
    with pytest.raises(ProgramError, match="header"):
        client.deserialize(data)


def test_a_signature_that_is_none(client: Client, blob: bytes) -> None:
    header, body = unpack(blob)
    for signature in ({}, {"parameters": [{}], "results": []}, {"parameters": 1, "results": 2}):
        bad = Header(header.name, header.platform, header.portable, signature)
        with pytest.raises(PjrtBridgeError):
            client.deserialize(pack(bad, body))
