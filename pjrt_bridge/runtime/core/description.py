"""Descriptions of compiled programs by the plugin: devices, results, cost, memory.

The functions take a PJRT_Executable that their caller keeps alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from pjrt_bridge import dtypes
from pjrt_bridge.abi.api import Api
from pjrt_bridge.abi.values import (
    NamedValue,
    decode_named_values,
    read_int64s,
    read_pointers,
    text,
)
from pjrt_bridge.errors import PjrtError, PluginIncompatible
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.device import Device
from pjrt_bridge.stablehlo.types import Signature, TensorType


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes that one execution needs on each device, by the compiler's account.

    Attributes:
        generated_code: the program itself; 0 from compilers that leave it out.
        arguments: what is passed in.
        outputs: what is given back.
        aliased: of the outputs, what lies where a donated argument lay.
        temporaries: what is needed in between.
        peak: the most that is in use at any moment, without the code; None where the plugin does
            not tell.
    """

    generated_code: int
    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    peak: int | None = None

    @property
    def needed(self) -> int:
        """Bytes of device memory that have to be there for one execution, code included."""
        together = self.arguments + self.outputs - self.aliased + self.temporaries
        return self.generated_code + max(together, self.peak or 0)


def devices(client: ClientCore, loaded: int) -> tuple[Device, ...]:
    """Devices of this process that a PJRT_LoadedExecutable runs on; none if it is portable."""
    try:
        found = client.api.call("LoadedExecutable_AddressableDevices", executable=loaded)
    except PjrtError:
        return ()
    listed = read_pointers(found.addressable_devices, found.num_addressable_devices)
    return tuple(client.device_of(pointer) for pointer in listed)


def partitions(api: Api, executable: int) -> int:
    """Devices that share one copy of the program."""
    return int(api.call("Executable_NumPartitions", executable=executable).num_partitions)


def device_count(client: ClientCore, executable: int, own: Sequence[Device]) -> int:
    """Devices of all processes that one execution uses, of which `own` are of this one."""
    if client.num_devices == len(client.devices):
        return len(own)
    replicas = client.api.call("Executable_NumReplicas", executable=executable).num_replicas
    return int(replicas) * partitions(client.api, executable)


def result_types(
    api: Api, executable: int, name: str, signature: Signature, *, sharded: bool
) -> tuple[TensorType, ...]:
    """Shapes on one device and types of the results: the plugin's account, else the program's.

    Raises:
        PluginIncompatible: the plugin speaks of other results than the program `name` has.
    """
    declared = tuple(
        TensorType(result.shard_shape, result.type.dtype) if sharded else result.type
        for result in signature.results
    )
    count = int(api.call("Executable_NumOutputs", executable=executable).num_outputs)
    if count != len(declared):
        raise PluginIncompatible(
            f"executable {name!r}: plugin {api.plugin!r} returns {count} results, "
            f"the program has {len(declared)}"
        )
    try:
        kinds = api.call("Executable_OutputElementTypes", executable=executable)
        dims = api.call("Executable_OutputDimensions", executable=executable, num_outputs=count)
    except PjrtError:
        return declared
    if not count:
        return ()
    ranks = read_int64s(dims.dim_sizes, count)
    sizes = read_int64s(dims.dims, sum(ranks))
    if (
        not kinds.output_types
        or ranks != tuple(type.rank for type in declared)
        or len(sizes) != sum(ranks)
    ):
        raise PluginIncompatible(
            f"executable {name!r}: plugin {api.plugin!r} gives the ranks {ranks} for results of "
            f"the types {', '.join(map(str, declared))}"
        )
    found, start = [], 0
    for code, rank in zip(
        (ctypes.c_int * count).from_address(kinds.output_types), ranks, strict=True
    ):
        found.append(TensorType(sizes[start : start + rank], dtypes.from_code(code)))
        start += rank
    return tuple(found)


def cost(api: Api, executable: int) -> dict[str, NamedValue]:
    """`PJRT_Executable_GetCostAnalysis`."""
    found = api.call("Executable_GetCostAnalysis", executable=executable)
    return decode_named_values(found.properties, found.num_properties)


def memory_stats(api: Api, executable: int) -> MemoryStats:
    """`PJRT_Executable_GetCompiledMemoryStats`."""
    found = api.call("Executable_GetCompiledMemoryStats", executable=executable)
    return MemoryStats(
        generated_code=int(found.generated_code_size_in_bytes),
        arguments=int(found.argument_size_in_bytes),
        outputs=int(found.output_size_in_bytes),
        aliased=int(found.alias_size_in_bytes),
        temporaries=int(found.temp_size_in_bytes),
        peak=int(found.peak_memory_in_bytes) or None,
    )


def parameter_memory_kinds(api: Api, executable: int) -> tuple[str, ...]:
    """`PJRT_Executable_ParameterMemoryKinds`."""
    found = api.call("Executable_ParameterMemoryKinds", executable=executable)
    count = int(found.num_parameters)
    kinds = read_pointers(found.memory_kinds, count)
    sizes = read_int64s(found.memory_kind_sizes, count)
    return tuple(text(kind, size) for kind, size in zip(kinds, sizes, strict=True))


def fingerprint(api: Api, executable: int) -> str:
    """`PJRT_Executable_Fingerprint`."""
    found = api.call("Executable_Fingerprint", executable=executable)
    if not found.executable_fingerprint:
        return ""
    raw = ctypes.string_at(found.executable_fingerprint, found.executable_fingerprint_size)
    # libtpu's is a hash in binary.
    return raw.decode() if raw.isascii() and raw.decode().isprintable() else raw.hex()
