"""What calls of public functions are given where it is right, and whether objects still work."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from pjrt_bridge import dtypes, registry
from pjrt_bridge.exported import ExportedModel, LoadedModel
from pjrt_bridge.runtime import (
    Buffer,
    Client,
    CompileOptions,
    Event,
    Executable,
    Layout,
    ShardedBuffer,
    Topology,
)
from pjrt_bridge.runtime.transfers.host import describe
from pjrt_bridge.stablehlo import Builder, Mesh, Program, Sharding, TensorType
from tests import programs
from tests.attacks.programs import client
from tests.exported.models import scaled

ONES = np.ones(64, np.float32)
TYPE = TensorType((64,), dtypes.of("float32"))
MESH = Mesh.of({"x": 1})
WHOLE = Sharding.replicated(MESH, 1)


@cache
def add() -> Executable:
    """Two arguments of 64 numbers."""
    return client().compile(programs.ADD)


@cache
def buffer() -> Buffer:
    """64 numbers."""
    return client().put(ONES)


@cache
def model() -> ExportedModel:
    """A small one."""
    return scaled()


@cache
def loaded() -> LoadedModel:
    """It, on a device."""
    return model().load_on(client())


@cache
def topology() -> Topology:
    """Two devices that are not there."""
    return registry.load("reference").topology("reference:2")


@cache
def elsewhere() -> Client:
    """Another client of the same plugin."""
    return client().plugin.client({"cpu_device_count": 2})


@cache
def closed() -> Client:
    """A client that was closed."""
    found = client().plugin.client({"cpu_device_count": 3})
    found.close()
    return found


def deleted() -> Buffer:
    """A buffer that was deleted."""
    found = client().put(ONES)
    found.delete()
    return found


def event() -> Event:
    """The end of an execution."""
    return add().submit([buffer(), buffer()])[1]


def accessor(name: str) -> Callable[[], object]:
    """An accessor of an extension that the reference plugin has."""
    return lambda: registry.client("reference").extension(registry.accessors()[name])


OBJECTS: dict[str, Callable[[], Any]] = {
    "Buffer": lambda: client().put(ONES),
    "Builder": lambda: Builder([TYPE, TYPE], name="x"),
    "Client": client,
    "ClientCore": client,
    "CompileOptions": CompileOptions,
    "CompiledExecutable": lambda: topology().compile(programs.ADD),
    "Device": lambda: client().devices[0],
    "DeviceDescription": lambda: client().devices[0],
    "Event": event,
    "Executable": add,
    "ExportedModel": model,
    "Interface": lambda: model().interface,
    "Layout": lambda: Layout((0,)),
    "Layouts": accessor("Layouts"),
    "LoadedModel": loaded,
    "Memory": lambda: client().memories[0],
    "MemoryDescriptions": accessor("MemoryDescriptions"),
    "Mesh": lambda: MESH,
    "Plugin": lambda: client().plugin,
    "PluginCore": lambda: client().plugin,
    "Profiler": accessor("Profiler"),
    "Program": lambda: Program.parse(programs.ADD),
    "ShardedBuffer": lambda: ShardedBuffer.put(client(), ONES, WHOLE),
    "Sharding": lambda: WHOLE,
    "Signature": lambda: add().signature,
    "Specialization": lambda: model().specializations[0],
    "TensorType": lambda: TYPE,
    "Topology": topology,
    "Tree": lambda: model().interface.outputs,
}
"""By the name of a class an object of it."""

BY_NAME: dict[str, Callable[[], Any]] = {
    "api": lambda: client().api,
    "arguments": lambda: [ShardedBuffer.put(client(), ONES, WHOLE)] * 2,
    "arrays": lambda: {"layer.weight": np.ones(16, np.float32)},
    "buffers": lambda: [buffer(), buffer()],
    "folder": lambda: "saved",
    "library": lambda: client().plugin.library,
    "program": lambda: programs.ADD,
    "text": lambda: "{0}",
}
"""By the name of a parameter; before what its annotation says."""

BY_TYPE: dict[str, Callable[[], Any]] = {
    **OBJECTS,
    "Body": lambda: lambda values: values,
    "DType": lambda: TYPE.dtype,
    "Handle": lambda: client().handle,
    "HostArray": lambda: describe(ONES),
    "PairBody": lambda: lambda left, right: left,
    "Sequence[Sharding | None]": lambda: [WHOLE, WHOLE],
    "Sequence[TensorType]": lambda: [TYPE],
    "Sequence[int]": lambda: [0],
    "bool": lambda: False,
    "int": lambda: 0,
    "str": lambda: "x",
    "tuple[int, ...]": lambda: (64,),
}
"""By the text of an annotation."""


def still_works() -> None:
    """The objects that all attacks share do what they did.

    Raises:
        AssertionError: one does not.
    """
    (result,) = add()(ONES, ONES)
    assert np.array_equal(result, ONES + ONES)
    assert np.array_equal(buffer(), ONES)
    assert [device.id for device in client().devices] == [0]


def shown(value: Any) -> str:
    """A few words of it, whatever it is."""
    try:
        return f"{value!r:.60}"
    except Exception:
        return f"a {type(value).__name__}"
