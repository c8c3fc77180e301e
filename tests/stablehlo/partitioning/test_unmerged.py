"""Operations over merged dimensions, computed over the dimensions before the merge."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Mesh, Program, Sharding, TensorType, bindings, shard
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.partitioning.unmerged import merged_sizes, unmerge

F32 = dtypes.of("float32")
MESH = Mesh.of({"dp": 2, "tp": 2})
TIME, BATCH, HEADS, SIZE = 3, 4, 2, 5
WIDTH = HEADS * SIZE


def unmerged(program: Program) -> Program:
    module = bindings.parse(program.bytecode(), "program")
    unmerge(module)
    return Program.from_module(module)


def of(*shapes: tuple[int, ...]) -> Builder:
    return Builder([TensorType(shape, F32) for shape in shapes])


def linear(b: Builder, x: Value, w: Value, bias: Value) -> Value:
    """PyTorch's `addmm` of a view, and the view of that."""
    flat = b.reshape(x, (TIME * BATCH, WIDTH))
    y = b.dot_general(flat, w, lhs_contract=(1,), rhs_contract=(0,))
    y = b.add(y, b.broadcast_in_dim(bias, y.shape, (1,)))
    half = b.multiply(y, b.full(y.shape, 0.5, F32))
    return b.reshape(half, (TIME, BATCH, WIDTH))


def weights(b: Builder, x: Value, g: Value) -> Value:
    """The gradient of the weights: rows are summed over that are merged on both sides."""
    flat, of_flat = (b.reshape(one, (TIME * BATCH, WIDTH)) for one in (x, g))
    return b.dot_general(b.transpose(of_flat, (1, 0)), flat, lhs_contract=(1,), rhs_contract=(0,))


def heads(b: Builder, x: Value, w: Value) -> Value:
    """The layer behind attention: what is summed over is merged on one side alone."""
    flat = b.reshape(x, (TIME * BATCH, WIDTH))
    y = b.dot_general(flat, w, lhs_contract=(1,), rhs_contract=(0,))
    return b.reshape(y, (TIME, BATCH, WIDTH))


def softmax(b: Builder, x: Value) -> Value:
    """Rows of a merged array, whose sums are repeated along each row."""
    flat = b.reshape(x, (TIME * BATCH, WIDTH))
    row = b.reshape(b.reduce_max(flat, (1,)), (TIME * BATCH, 1))
    powers = b.exp(b.subtract(flat, b.broadcast_in_dim(row, flat.shape, (0, 1))))
    total = b.reshape(b.reduce_sum(powers, (1,)), (TIME * BATCH, 1))
    y = b.divide(powers, b.broadcast_in_dim(total, flat.shape, (0, 1)))
    return b.reshape(y, (TIME, BATCH, WIDTH))


def stack(b: Builder, x: Value, y: Value) -> Value:
    """`torch.stack`: joined along the first dimension, which is then divided."""
    return b.reshape(b.concatenate([x, y], 0), (2, BATCH, WIDTH))


X = (TIME, BATCH, WIDTH)
CASES = [
    pytest.param(linear, [X, (WIDTH, WIDTH), (WIDTH,)], (None, "dp"), (None, "dp"), id="linear"),
    pytest.param(weights, [X, X], (None, "dp"), (), id="weights"),
    pytest.param(
        heads,
        [(TIME, BATCH, HEADS, SIZE), (WIDTH, WIDTH)],
        (None, "dp", "tp"),
        (None, "dp"),
        id="heads",
    ),
    pytest.param(softmax, [X], (None, "dp"), (None, "dp"), id="softmax"),
    pytest.param(stack, [(BATCH, WIDTH)] * 2, ("dp",), (None, "dp"), id="stack"),
]


@pytest.mark.parametrize(("write", "shapes", "given", "expected"), CASES)
def test_numbers_and_shardings(
    client: Client,
    write: Callable[..., Value],
    shapes: list[tuple[int, ...]],
    given: tuple[str | None, ...],
    expected: tuple[str | None, ...],
) -> None:
    builder = of(*shapes)
    program = builder.finish([write(builder, *builder.parameters)])
    rng = np.random.default_rng(0)
    arrays = [rng.random(shape, np.float32) for shape in shapes]
    (before,), (after,) = (client.compile(one)(*arrays) for one in (program, unmerged(program)))
    np.testing.assert_allclose(np.asarray(after), np.asarray(before), rtol=1e-5)
    parameters = [Sharding.of(MESH, given, len(shapes[0])), *[None] * (len(shapes) - 1)]
    (result,) = program.signature.results
    assert shard(program, MESH, parameters, [None]).results == (
        Sharding.of(MESH, expected, result.type.rank),
    )


@pytest.mark.parametrize("seed", range(20))
def test_random_programs(client: Client, seed: int) -> None:
    chosen = random.Random(seed)
    shape = tuple(chosen.choice((1, 2, 3)) for _ in range(chosen.randint(2, 4)))
    builder = of(shape, shape)
    values = list(builder.parameters)
    for _ in range(8):
        values.append(_random(builder, values, chosen))
    program = builder.finish(values[-3:])
    rng = np.random.default_rng(seed)
    arrays = [rng.random(shape, np.float32) for _ in range(2)]
    before, after = (client.compile(one)(*arrays) for one in (program, unmerged(program)))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(np.asarray(other), np.asarray(one), rtol=1e-4)


def _random(b: Builder, values: list[Value], chosen: random.Random) -> Value:
    x = chosen.choice(values[-4:])
    kind = chosen.choice(("merge", "merge", "split", "transpose", "add", "sum", "product", "wide"))
    dims = list(range(x.rank))
    if kind == "merge" and x.rank > 1:
        at = chosen.randrange(x.rank - 1)
        return b.reshape(x, (*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :]))
    if kind == "split" and x.rank:
        at = chosen.choice(dims)
        parts = [n for n in (1, 2, 3) if x.shape[at] % n == 0]
        first = chosen.choice(parts)
        return b.reshape(x, (*x.shape[:at], first, x.shape[at] // first, *x.shape[at + 1 :]))
    if kind == "transpose":
        return b.transpose(x, chosen.sample(dims, x.rank))
    if kind == "add":
        alike = chosen.choice([one for one in values if one.shape == x.shape])
        return b.add(b.tanh(x), alike)
    if kind == "sum" and x.rank > 1:
        return b.reduce_sum(x, chosen.sample(dims, chosen.randint(1, x.rank - 1)))
    if kind == "product" and x.rank and x.size < 200:
        at = chosen.choice(dims)
        y = chosen.choice([one for one in values if x.shape[at] in one.shape])
        to = chosen.choice([dim for dim, size in enumerate(y.shape) if size == x.shape[at]])
        if y.size < 200:
            return b.tanh(b.dot_general(x, y, lhs_contract=(at,), rhs_contract=(to,)))
    if kind == "wide":
        return b.broadcast_in_dim(x, (*x.shape, 2), dims)
    return b.multiply(x, b.full(x.shape, 0.5, F32))


def test_what_is_no_merge() -> None:
    assert merged_sizes((2, 3, 1, 4), (6, 4)) == [[2, 3], [1, 4]]
    assert merged_sizes((2, 3, 1), (2, 3)) == [[2], [3, 1]]
    for before, after in [
        ((6,), (2, 3)),
        ((2, 6), (4, 3)),
        ((0, 2), (0,)),
        ((2, 1), ()),
        ((), (1,)),
    ]:
        assert merged_sizes(before, after) is None, (before, after)


def test_a_stated_sharding_stays() -> None:
    """It is one of the merged dimensions."""
    program = Program.parse("""
    module { sdy.mesh @mesh = <["dp"=2]>
    func.func public @main(%x: tensor<2x4xf32>) -> tensor<8xf32> {
      %0 = stablehlo.reshape %x : (tensor<2x4xf32>) -> tensor<8xf32>
      %1 = stablehlo.tanh %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"dp"}]>]>}
          : tensor<8xf32>
      return %1 : tensor<8xf32>
    } }""")
    assert unmerged(program).text == program.text
