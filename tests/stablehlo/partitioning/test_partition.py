"""The program of one device: run on each device of a mesh, it computes what the whole one does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import client
from pjrt_bridge.runtime import CompileOptions, ShardedBuffer
from pjrt_bridge.stablehlo import Mesh, Program, Sharding, shard
from pjrt_bridge.stablehlo.interpret import interpretable
from pjrt_bridge.stablehlo.partitioning.partition import partitioned

# The interpreter of the reference plugin needs a core for each device.
MESH = Mesh.of({"dp": 2})
_SPECS = st.sampled_from([((), ()), (("dp",), ()), ((), ("dp",))])

_PROGRAMS = {
    "product, softmax and sum": """
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x8xf32>) -> (tensor<8x8xf32>, tensor<8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.exponential %0 : tensor<8x8xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<8xf32>) -> tensor<8x8xf32>
  %4 = stablehlo.divide %1, %3 : tensor<8x8xf32>
  %5 = stablehlo.transpose %4, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %5, %2 : tensor<8x8xf32>, tensor<8xf32>
}""",
    "slice, concatenate and reshape": """
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x8xf32>)
    -> (tensor<8x20xf32>, tensor<4x32xf32>) {
  %0 = stablehlo.slice %x [0:8, 4:16] : (tensor<8x16xf32>) -> tensor<8x12xf32>
  %1 = stablehlo.transpose %w, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
  %2 = stablehlo.slice %1 [0:8, 0:8] : (tensor<8x16xf32>) -> tensor<8x8xf32>
  %3 = stablehlo.concatenate %0, %2, dim = 1
      : (tensor<8x12xf32>, tensor<8x8xf32>) -> tensor<8x20xf32>
  %4 = stablehlo.reshape %w : (tensor<16x8xf32>) -> tensor<4x32xf32>
  return %3, %4 : tensor<8x20xf32>, tensor<4x32xf32>
}""",
    "rows by their numbers": """
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x8xf32>) -> tensor<8x8xf32> {
  %i = stablehlo.iota dim = 0 : tensor<8xi32>
  %two = stablehlo.constant dense<2> : tensor<8xi32>
  %at = stablehlo.multiply %i, %two : tensor<8xi32>
  %0 = "stablehlo.gather"(%w, %at) <{dimension_numbers = #stablehlo.gather<offset_dims = [1],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 8>}> : (tensor<16x8xf32>, tensor<8xi32>) -> tensor<8x8xf32>
  %1 = stablehlo.slice %x [0:8, 0:8] : (tensor<8x16xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.add %0, %1 : tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}""",
}


@pytest.mark.parametrize("name", _PROGRAMS)
@given(x=_SPECS, w=_SPECS)
@settings(max_examples=9)
def test_each_device_computes_its_part(
    name: str, x: tuple[tuple[str, ...], ...], w: tuple[tuple[str, ...], ...]
) -> None:
    program = Program.parse(_PROGRAMS[name])
    specs = [Sharding.of(MESH, one, 2) for one in (x, w)]
    divided = shard(program, MESH, specs, [None] * len(program.signature.results))
    own = partitioned(divided.program)
    parameters = [
        one.shard_shape(parameter.type.shape)
        for one, parameter in zip(specs, program.signature.parameters, strict=True)
    ]
    assert [parameter.type.shape for parameter in own.signature.parameters] == parameters
    assert b"sdy." not in own.bytecode()

    if interpretable.threads() < MESH.size:
        return
    two = client("reference", device_count=2)
    numbers = np.random.default_rng(0)
    arrays = [
        numbers.standard_normal(parameter.type.shape).astype(np.float32)
        for parameter in program.signature.parameters
    ]
    put = [ShardedBuffer.put(two, a, one) for a, one in zip(arrays, specs, strict=True)]
    options = CompileOptions(num_partitions=2, use_spmd_partitioning=False)
    compiled = two.compile(own, options=options)
    made = compiled.execute_sharded([[one.shards[at] for one in put] for at in range(2)])
    expected = two.compile(program)(*arrays)
    for at, (whole, sharding) in enumerate(zip(expected, divided.results, strict=True)):
        found = ShardedBuffer(whole.type, sharding, [row[at] for row in made])
        for position, part in enumerate(found.shards):
            there = np.asarray(whole)[sharding.indices(whole.shape, position)]
            np.testing.assert_allclose(np.asarray(part), there, rtol=1e-5, atol=1e-5)
