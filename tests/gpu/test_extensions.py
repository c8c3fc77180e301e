"""What the extensions of the CUDA plugin do on a GPU, through the bridge's accessors."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.abi.values import free
from pjrt_bridge.extensions import FFI, Layouts, MemoryDescriptions, Profiler
from pjrt_bridge.extensions.tables import (
    AbiVersion,
    CrossHostTransfers,
    CustomPartitioner,
    GpuCustomCall,
    Shardings,
    Stream,
    XlaTransform,
)
from pjrt_bridge.runtime import Client, Layout
from pjrt_bridge.stablehlo.types import TensorType
from tests import programs

ONES = np.ones(64, np.float32)


def test_each_of_them_is_whole(gpu: Client) -> None:
    for kind in (
        CrossHostTransfers,
        CustomPartitioner,
        FFI,
        GpuCustomCall,
        Layouts,
        MemoryDescriptions,
        Stream,
    ):
        accessor = gpu.extension(kind)
        assert set(accessor.offered()) == set(kind.TABLE.functions), kind
    # Newer than some builds of the plugin.
    offered = {link.type for link in gpu.extensions}
    for kind in (AbiVersion, Shardings, XlaTransform, Profiler):
        if kind.TABLE.type in offered:
            assert gpu.extension(kind).link.struct_size > 24


def test_streams_have_handles_and_wait(gpu: Client) -> None:
    stream = gpu.extension(Stream)
    (device,) = gpu.devices[:1]
    # Several take turns.
    handles = [stream.call("get_stream", device=device.pointer).stream for _ in range(8)]
    assert all(handles)
    with gpu.put(ONES) as buffer, buffer.held() as pointer:
        for handle in handles:
            stream.call("wait_stream", stream=handle, buffer=pointer)
        assert np.array_equal(buffer.to_numpy(), ONES)


def test_layouts(gpu: Client) -> None:
    layouts = gpu.extension(Layouts)
    assert layouts.default(TensorType((3, 4), dtypes.of("float32"))) == Layout((1, 0))
    source = programs.identity("tensor<3x4xf32>", result='{mhlo.layout_mode = "{0,1}"}')
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    with gpu.compile(source) as executable:
        assert layouts.outputs(executable) == (Layout((0, 1)),)
        assert layouts.parameters(executable) == (Layout((1, 0)),)
        (result,) = executable(array)
        assert layouts.of(result) == Layout((0, 1))
        assert np.array_equal(result.to_numpy(), array)


def test_memories_are_described(gpu: Client) -> None:
    device = gpu.devices[0]
    # The descriptions of a client's devices may be silent, since the devices themselves are there.
    described = gpu.extension(MemoryDescriptions).of(device)
    assert {one.kind for one in described} <= {memory.kind for memory in device.memories}


def test_the_version_of_the_runtime_is_written_and_read(gpu: Client) -> None:
    if AbiVersion.TABLE.type not in {link.type for link in gpu.extensions}:
        pytest.skip("this build of the plugin has no extension AbiVersion")
    versions = gpu.extension(AbiVersion)
    with gpu.handle.held() as pointer:
        runtime = versions.call("client_runtime_abi_version", client=pointer).abi_version
    made = versions.call("runtime_abi_version_to_proto", abi_version=runtime)
    text = ctypes.string_at(made.serialized_proto, made.serialized_proto_size)
    free(made.serialized_proto_deleter, made.serialized_proto_holder)
    memory = ctypes.create_string_buffer(text, max(len(text), 1))
    again = versions.call(
        "runtime_abi_version_from_proto",
        serialized_proto=ctypes.addressof(memory),
        serialized_proto_size=len(text),
    ).abi_version
    platforms = [
        versions.call("runtime_abi_version_platform_id", abi_version=one).platform_id
        for one in (runtime, again)
    ]
    for one in (runtime, again):
        versions.call("runtime_abi_version_destroy", abi_version=one)
    assert platforms[0] == platforms[1] != 0
