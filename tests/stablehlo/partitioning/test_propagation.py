import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import Builder, Program, TensorType
from pjrt_bridge.stablehlo.partitioning.propagation import closed, shard
from pjrt_bridge.stablehlo.sharding.mesh import Mesh
from pjrt_bridge.stablehlo.sharding.sharding import Sharding

MESH = Mesh.of({"dp": 2, "tp": 2})
MLP = Program.parse("""
func.func public @main(%x: tensor<8x16xf32>, %w: tensor<16x32xf32>, %v: tensor<32x6xf32>)
    -> tensor<8x6xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %1 = stablehlo.tanh %0 : tensor<8x32xf32>
  %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0]
      : (tensor<8x32xf32>, tensor<32x6xf32>) -> tensor<8x6xf32>
  return %2 : tensor<8x6xf32>
}""")


def of(*spec, rank=2):
    return Sharding.of(MESH, spec, rank)


def _tanh(count, donate=False):
    builder = Builder([TensorType((count,), dtypes.of("float32"))])
    if donate:
        builder.donate(0, 0)
    return builder.finish([builder.tanh(builder.parameters[0])])


def test_what_is_not_said_is_found():
    found = shard(MLP, MESH, [of("dp"), of(None, "tp"), None], [None])
    assert found.parameters == (of("dp"), of(None, "tp"), of("tp"))
    assert found.results == (of("dp"),)
    signature = found.program.signature
    assert [item.shard_shape for item in signature.parameters] == [(4, 16), (16, 16), (16, 6)]
    assert signature.results[0].shard_shape == (4, 6)


def test_what_is_found_and_does_not_divide_is_replicated():
    program = _tanh(3)
    twice = Builder([TensorType((3,), dtypes.of("float32"))])
    wide = twice.constrain(twice.tanh(twice.parameters[0]), of(None, rank=1))
    assert shard(twice.finish([wide]), MESH, [None], [None]).results == (of(rank=1),)
    with pytest.raises(ProgramError, match=r"parameter 0: sharding: dimension 0 of shape .3. has"):
        shard(program, MESH, [of("dp", rank=1)], [None])


def test_a_constraint_spreads():
    builder = Builder([TensorType((4,), dtypes.of("float32"))])
    inner = builder.constrain(builder.tanh(builder.parameters[0]), of("tp", rank=1))
    found = shard(builder.finish([builder.tanh(inner)]), MESH, [None], [None])
    assert found.parameters == found.results == (of("tp", rank=1),)


def test_constraints_that_cannot_be():
    builder = Builder([TensorType((4,), dtypes.of("float32"))])
    (x,) = builder.parameters
    with pytest.raises(ProgramError, match="tiles 2 dimensions"):
        builder.constrain(x, of("dp"))
    builder.constrain(x, of("dp", rank=1))
    with pytest.raises(ProgramError, match=r"found the meshes"):
        builder.constrain(x, Sharding.of(Mesh.of({"a": 4}), ("a",), 1))


def test_memory_that_a_result_takes_lies_as_the_result():
    program = _tanh(4, donate=True)
    assert shard(program, MESH, [of("dp", rank=1)], [None]).results == (of("dp", rank=1),)
    with pytest.raises(ProgramError, match="result 0 takes the memory of parameter 0"):
        shard(program, MESH, [of("dp", rank=1)], [of("tp", rank=1)])


def test_impossible_shardings():
    other = Sharding.of(Mesh.of({"a": 4}), ("a",), 2)
    for shardings, needle in [
        ([of("dp")], "shardings for 1 parameters, it has 3"),
        ([other, None, None], "parameter 0: found a sharding over Mesh.a=4."),
        ([of("dp", rank=1), None, None], "parameter 0: .*tiles 1 dimensions"),
    ]:
        with pytest.raises(ProgramError, match=needle):
            shard(MLP, MESH, shardings, [None])


def test_programs_of_other_makers_are_closed():
    """Without a sharding the partitioner would give parameter 1 the shards that it likes."""
    program = Program.parse("""
    module @m { sdy.mesh @grid = <["x"=4]>
      func.func public @main(
          %x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@grid, [{"x", ?}, {?}]>},
          %y: tensor<8x4xf32>, %z: tensor<f32>) -> (tensor<8x4xf32>, tensor<f32>) {
        %0 = stablehlo.add %x, %y : tensor<8x4xf32>
        return %0, %z : tensor<8x4xf32>, tensor<f32>
      } }""")
    assert program.signature.parameters[1].shard_shape == (8, 4)
    found = closed(program)
    signature = found.signature
    assert [item.shard_shape for item in signature.parameters] == [(2, 4), (2, 4), ()]
    assert [item.shard_shape for item in signature.results] == [(2, 4), ()]
    assert "?" not in found.text
    assert closed(MLP) is MLP


def test_meshes_without_axes():
    program = Program.parse("""
    module @m { sdy.mesh @empty = <[]>
      func.func public @main(%x: tensor<3xf32> {sdy.sharding = #sdy.sharding<@empty, [{}]>})
          -> tensor<3xf32> { return %x : tensor<3xf32> } }""")
    assert closed(program).signature.results[0].shard_shape == (3,)
