"""Arrays and programs over the devices of a mesh."""

import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.errors import (
    BufferUnavailable,
    ClientLost,
    DataError,
    InvalidArgument,
    OptionError,
    ProgramError,
    SignatureMismatch,
)
from pjrt_bridge.runtime import (
    Client,
    CompileOptions,
    Plugin,
    ShardedBuffer,
    ShardedExecutable,
)
from pjrt_bridge.stablehlo import Builder, Mesh, Sharding, TensorType, shard
from tests.conftest import Census

MESH = Mesh.of({"x": 2})
F32 = dtypes.of("float32")


def of(*spec, rank=2):
    return Sharding.of(MESH, spec, rank)


@pytest.fixture(scope="module")
def product(pair: Client) -> ShardedExecutable:
    """The product of two matrices, summed over devices; the first one may be donated."""
    builder = Builder([TensorType((4, 6), F32), TensorType((6, 4), F32)], name="product")
    x, y = builder.parameters
    builder.donate(0)
    dot = builder.dot_general(x, y, lhs_contract=[1], rhs_contract=[0])
    program = builder.finish([dot, builder.tanh(x)])
    return ShardedExecutable(pair, shard(program, MESH, [of(None, "x"), of("x")], [of("x"), None]))


@pytest.mark.parametrize("spec", [(), ("x",), (None, "x"), (("x",), None)])
@pytest.mark.parametrize("dtype", ["float32", "int4", "bool", "complex64"])
def test_values_come_back(pair: Client, no_leaks: Census, spec, dtype) -> None:
    x = np.random.default_rng(0).integers(0, 2, (4, 6)).astype(dtypes.of(dtype).numpy)
    for data in (x, x.T, np.asfortranarray(x)):
        held = ShardedBuffer.put(pair, data, of(*spec))
        assert (held.shape, held.dtype) == (data.shape, dtypes.of(dtype))
        assert [shard.device for shard in held.shards] == list(pair.devices)
        np.testing.assert_array_equal(held.to_numpy(), data)
        np.testing.assert_array_equal(np.asarray(held), data)


def test_a_program_over_a_mesh(no_leaks: Census, pair: Client, product: ShardedExecutable) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((4, 6), np.float32), rng.random((6, 4), np.float32)
    a, b = (
        ShardedBuffer.put(pair, data, sharding)
        for data, sharding in zip((x, y), product.program.parameters, strict=True)
    )
    dot, tanh = product.execute([a, b], donate=())
    np.testing.assert_allclose(dot.block_until_ready().to_numpy(), x @ y, rtol=1e-6)
    np.testing.assert_allclose(tanh.to_numpy(), np.tanh(x), rtol=1e-6)
    assert tanh.sharding == of(None, "x")
    assert dot.nbytes == 4 * 4 * 4
    product.execute([a, b])
    with pytest.raises(BufferUnavailable, match="donated"):
        a.to_numpy()


def test_wrong_arguments(pair: Client, product: ShardedExecutable) -> None:
    x, y = np.ones((4, 6), np.float32), np.ones((6, 4), np.float32)
    a, b = ShardedBuffer.put(pair, x, of("x")), ShardedBuffer.put(pair, y, of("x"))
    for arguments, needle in [
        ([a], "found 1 arguments, expected 2"),
        ([a, b], r"argument 0 .* expected an array with the sharding \[-, x\] over"),
        ([pair.put(x), b], "argument 0"),
        ([b, b], "argument 0"),
    ]:
        with pytest.raises(SignatureMismatch, match=needle):
            product.execute(arguments)
    other = ShardedBuffer.put(pair, y, of(None, "x"))
    with pytest.raises(SignatureMismatch, match=r"found f32\[6,2\], expected f32\[4,3\]"):
        product.execute([other, b])


def test_what_cannot_be_divided(client: Client, pair: Client) -> None:
    with pytest.raises(ProgramError, match="dimension 0 of shape"):
        ShardedBuffer.put(pair, np.ones((3, 2), np.float32), of("x"))
    with pytest.raises(OptionError, match=r"needs 2 devices, .* has 1"):
        ShardedBuffer.put(client, np.ones((4, 2), np.float32), of("x"))
    half = pair.put(np.ones((2, 2), np.float32))
    with pytest.raises(DataError, match="found 1 shards, expected 2"):
        ShardedBuffer(TensorType((4, 2), F32), of("x"), [half])
    with pytest.raises(DataError, match=r"shard 0: found f32\[2,2\], expected f32\[4,1\]"):
        ShardedBuffer(TensorType((4, 2), F32), of(None, "x"), [half, half])


UNEVEN = """
module @uneven {{ {mesh}
  func.func public @main(%x: tensor<3xf32> {{{attribute}}}) -> tensor<3xf32> {{
    return %x : tensor<3xf32>
  }} }}"""


def test_foreign_programs_that_do_not_divide_are_refused(pair: Client) -> None:
    """The plugin would divide by another number than the one that the signature has."""
    text = UNEVEN.format(
        mesh='sdy.mesh @m = <["x"=2]>', attribute='sdy.sharding = #sdy.sharding<@m, [{"x"}]>'
    )
    with pytest.raises(ProgramError, match=r"program 'uneven': parameter 0: .* 2 equal parts"):
        pair.compile(text, options=CompileOptions(num_partitions=2))
    assert pair.compile(text).signature.parameters[0].type.shape == (3,)


def test_a_client_whose_devices_wait_for_each_other_is_lost(plugin: Plugin) -> None:
    """After a start on one of two devices the next sharded execution would not end."""
    options = {"cpu_device_count": 3}
    client = plugin.client(options)
    builder = Builder([TensorType((4, 2), F32)], name="sums")
    total = builder.reduce(
        [builder.parameters[0]],
        [builder.constant(0.0, F32)],
        [0, 1],
        lambda a, b: [builder.add(*a, *b)],
    )
    program = shard(builder.finish(total), MESH, [of("x")], [None])
    executable = ShardedExecutable(client, program)
    x = ShardedBuffer.put(client, np.ones((4, 2), np.float32), of("x"))
    assert executable.execute([x])[0].to_numpy() == 8
    # What the bridge looks at before each call is changed, so that the plugin finds the mistake.
    demands = executable.executable._arguments
    demands.types = (TensorType((1, 2), F32),)
    small = [[client.put(np.ones((1, 2), np.float32), device)] for device in client.devices[:2]]
    with pytest.raises(InvalidArgument):
        executable.executable.execute_sharded(small)
    demands.types = (TensorType((2, 2), F32),)
    with pytest.raises(ClientLost, match="'sums' could not be started on all of its 2 devices"):
        executable.execute([x])
    again = plugin.client(options)
    assert again is not client
    x = ShardedBuffer.put(again, np.ones((4, 2), np.float32), of("x"))
    assert ShardedExecutable(again, program).execute([x])[0].to_numpy() == 8
