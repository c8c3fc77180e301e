"""Compiled programs as bytes: written, read in this and in another process, damaged."""

from __future__ import annotations

import base64
import ctypes

import numpy as np

from pjrt_bridge.abi.values import free
from pjrt_bridge.errors import PjrtError
from pjrt_bridge.runtime import Client, CompileOptions
from pjrt_bridge.runtime.compile.serialized import pack, unpack
from pjrt_bridge.stablehlo import Program, bindings
from pjrt_bridge_conformance import raw
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import ADD, equal, refused, require, same, works
from pjrt_bridge_conformance.outcomes import Unsupported

SERIALIZATION = Group("serialization")

_X = np.arange(64, dtype=np.float32)


def _serialized(client: Client) -> bytes:
    with client.compile(ADD) as executable:
        return executable.serialize()


def _loads(client: Client, data: bytes) -> None:
    with client.deserialize(data) as executable:
        (result,) = executable(_X, _X)
        same(result.to_numpy(), _X + _X, "a sum by the program that was read")


@SERIALIZATION.check
def round_trip(context: Context) -> None:
    """A compiled program that was written and read computes the same."""
    _loads(context.client, _serialized(context.client))


@SERIALIZATION.check
def another_client(context: Context) -> None:
    """A compiled program is read by another client of the plugin."""
    data = _serialized(context.client)
    with context.second() as client:
        _loads(client, data)


@SERIALIZATION.check
def another_process(context: Context) -> None:
    """A compiled program is read in another process."""
    data = _serialized(context.client)
    found = context.elsewhere(_read, base64.b64encode(data).decode())
    equal(found, (_X + _X).tolist(), "a sum in another process")


def _read(context: Context, data: str) -> list[float]:
    with context.client.deserialize(base64.b64decode(data)) as executable:
        (result,) = executable(_X, _X)
        return [float(value) for value in result.to_numpy()]


@SERIALIZATION.check
def after_the_original(context: Context) -> None:
    """What was read outlives the executable that was written."""
    client = context.client
    executable = client.compile(ADD)
    copy = client.deserialize(executable.serialize())
    executable.close()
    with copy:
        (result,) = copy(_X, _X)
        same(result.to_numpy(), _X + _X, "a sum")


@SERIALIZATION.check
def replicas(context: Context) -> None:
    """A program of two replicas is read as one of two replicas."""
    client = context.pair
    with client.compile(ADD, options=CompileOptions(num_replicas=2)) as executable:
        data = executable.serialize()
    with client.deserialize(data) as copy:
        equal(len(copy.devices), 2, "devices")
        arguments = [[client.put(_X, device)] * 2 for device in copy.devices]
        for (result,) in copy.execute_sharded(arguments):
            same(result.to_numpy(), _X + _X, "a sum")


def _blob(client: Client) -> bytes:
    """The plugin's own bytes of a program."""
    with raw.compiled(client, ADD) as (_, inner):
        return _bytes_of(client, inner)


def _bytes_of(client: Client, inner: int) -> bytes:
    """What the plugin writes of a PJRT_Executable."""
    raw.need(client.api, "Executable_Serialize", "Executable_DeserializeAndLoad")
    found = client.api.call("Executable_Serialize", executable=inner)
    blob = ctypes.string_at(found.serialized_bytes, found.serialized_bytes_size)
    free(found.serialized_executable_deleter, found.serialized_executable)
    require(blob, "nothing was written")
    return blob


def _load(client: Client, blob: bytes) -> None:
    made = client.api.call(
        "Executable_DeserializeAndLoad",
        client=client.handle.pointer,
        serialized_executable=blob,
        serialized_executable_size=len(blob),
    )
    client.api.call("LoadedExecutable_Destroy", executable=made.loaded_executable)


_DAMAGE = {
    "empty": lambda blob: b"",
    "garbage": lambda blob: b"this is no program" * 10,
    "first_half": lambda blob: blob[: len(blob) // 2],
    "no_start": lambda blob: bytes(64) + blob[64:],
}


@SERIALIZATION.each(_DAMAGE)
def damaged(context: Context, name: str) -> None:
    """Bytes that are no serialized program are refused."""
    client = context.client
    data = _DAMAGE[name](_blob(client))  # type: ignore[no-untyped-call]
    refused(lambda: _load(client, data), f"serialized bytes: {name}")
    works(client, f"serialized bytes: {name}")


@SERIALIZATION.check
def written_twice(context: Context) -> None:
    """An executable can be written more than once."""
    with context.client.compile(ADD) as executable:
        for _ in range(3):
            _loads(context.client, executable.serialize())


@SERIALIZATION.check
def written_again(context: Context) -> None:
    """What was read can be written again and read again, or that is refused in a clean way."""
    client = context.client
    header, _ = unpack(_serialized(client))
    with client.deserialize(_serialized(client)) as copy, copy.held() as inner:
        blob = _bytes_of(client, inner)
    try:
        with client.deserialize(pack(header, blob)) as executable:
            (result,) = executable(_X, _X)
            found = result.to_numpy()
    except PjrtError as error:
        raise Unsupported(f"refused in a clean way: {error}") from error
    same(found, _X + _X, "a sum by the program that was read twice")


@SERIALIZATION.each(["1.0.0", "plugin_minimum", "plugin_current"])
def artifact(context: Context, version: str) -> None:
    """A portable artifact of each StableHLO version that the plugin states can be compiled."""
    client = context.client
    attributes = client.plugin.attributes
    if version.startswith("plugin_"):
        name = f"stablehlo_{version.removeprefix('plugin_')}_version"
        stated = attributes.get(name)
        # The bindings write nothing older than this, and nothing newer than themselves.
        parts = max(tuple(stated), (0, 9, 0)) if isinstance(stated, tuple) else (1, 0, 0)
        parts = min(parts, tuple(map(int, bindings.current_version().split("."))))
        version = ".".join(map(str, parts))
    code = Program.parse(ADD).portable_artifact(version)
    loaded = raw.compile_bytes(client, code, CompileOptions().serialize())
    client.api.call("LoadedExecutable_Destroy", executable=loaded)


@SERIALIZATION.check
def fingerprint(context: Context) -> None:
    """One program has one fingerprint, another program another."""
    client = context.client
    other = ADD.replace("stablehlo.add", "stablehlo.multiply")
    with client.compile(ADD) as one, client.compile(ADD) as two, client.compile(other) as three:
        require(one.fingerprint(), "the fingerprint is empty")
        equal(one.fingerprint(), two.fingerprint(), "fingerprints of one program")
        require(one.fingerprint() != three.fingerprint(), "two programs have one fingerprint")
