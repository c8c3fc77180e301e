"""Calls of cuDNN's fused attention, as XLA's compiler for GPUs takes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import pjrt_bridge_cuda
from pjrt_bridge import dtypes, registry
from pjrt_bridge.errors import BridgeWarning
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.kernel_attributes import Attention
from pjrt_bridge_cuda import fused_attention
from pjrt_bridge_cuda.kernels import CudaKernels, can_fuse_attention
from tests.accelerators.wheels import PRELUDE, need
from tests.plugins import run_python

PLAIN = Attention(0.125, is_causal=False)
CAUSAL = replace(PLAIN, is_causal=True)

PROGRAM = """
from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.kernel_attributes import Attention
from pjrt_bridge_cuda import fused_attention as fused

def program(dtype, heads_inside, is_causal, heads=4, key_heads=4, queries=128, keys=128, size=64):
    order = (0, 2, 1, 3)
    def side(*shape):
        shape = tuple(shape[dim] for dim in order) if heads_inside else shape
        return TensorType(shape, dtypes.of(dtype))
    query, key = side(2, heads, queries, size), side(2, key_heads, keys, size)
    b = Builder([query, query, key, key])
    given = [b.transpose(x, order) if heads_inside else x for x in b.parameters]
    slope, q, k, v = given
    how = Attention(0.125, is_causal)
    assert fused.takes(q, k, v, how)
    call, sides, inside = fused.forward(q, k, v, how)
    assert inside == heads_inside
    output, sums = fused.emit(b, call, sides, inside=inside)
    call, sides, inside = fused.backward(slope, q, k, v, output, sums, how)
    results = [output, *fused.emit(b, call, sides, inside=inside)]
    assert [item.type for item in results] == [q.type, q.type, k.type, v.type]
    return b.finish([b.transpose(x, order) if heads_inside else x for x in results])
"""


def test_they_compile_without_a_gpu() -> None:
    need(*pjrt_bridge_cuda.WHEELS)
    shown = run_python(
        PROGRAM
        + """
uses = [
    dict(dtype="bfloat16", heads_inside=True, is_causal=True),
    dict(dtype="float16", heads_inside=False, is_causal=False, queries=64, keys=384, size=128),
    dict(dtype="bfloat16", heads_inside=True, is_causal=False, key_heads=2, size=8),
]
for use in uses:
    for name in ("h100", "h200"):
        with compile_for(program(**use), topology=name) as made:
            code, _ = made.optimized()
            # Once each, and nothing that turns arrays.
            print(code.count(b"__cudnn$fmhaSoftmaxBackward"), code.count(b"__cudnn$fmhaSoftmax"),
                  b"transpose" in code)
""",
        prelude=PRELUDE,
        timeout=200,
    )
    assert shown.splitlines() == ["1 2 False"] * 6


def sides(
    dtype: str = "bfloat16",
    queries: tuple[int, ...] = (2, 4, 16, 64),
    keys: tuple[int, ...] | None = None,
    values: tuple[int, ...] | None = None,
) -> list[Value]:
    keys = keys or queries
    shapes = (queries, keys, values or keys)
    return list(Builder([TensorType(shape, dtypes.of(dtype)) for shape in shapes]).parameters)


def test_what_there_are_kernels_for() -> None:
    assert fused_attention.takes(*sides(), CAUSAL)
    assert fused_attention.takes(*sides("float16", (2, 4, 16, 8), (2, 2, 10, 8)), PLAIN)


@pytest.mark.parametrize(
    ("given", "how"),
    [
        (sides("float32"), PLAIN),
        (sides(queries=(2, 4, 17, 64)), PLAIN),
        (sides(keys=(2, 4, 15, 64)), PLAIN),
        (sides(keys=(2, 4, 32, 64)), CAUSAL),
        (sides(queries=(2, 4, 16, 136)), PLAIN),
        (sides(queries=(2, 4, 16, 12)), PLAIN),
        (sides(keys=(2, 3, 16, 64)), PLAIN),
        (sides(keys=(1, 4, 16, 64)), PLAIN),
        (sides(values=(2, 4, 16, 32)), PLAIN),
        (sides(queries=(2, 4, 0, 64), keys=(2, 4, 16, 64)), PLAIN),
        (sides(queries=(4, 16, 64)), PLAIN),
        (sides(), replace(PLAIN, scale=float("inf"))),
    ],
    ids=[
        "float32",
        "odd queries",
        "odd keys",
        "causal of other lengths",
        "large heads",
        "size of heads",
        "heads",
        "batch",
        "values",
        "nothing",
        "three dimensions",
        "scale",
    ],
)
def test_what_there_are_none_for(given: list[Value], how: Attention) -> None:
    query, key, value = given
    assert not fused_attention.takes(query, key, value, how)


def test_where_the_compiler_takes_none_there_is_one_warning() -> None:
    """XLA's compiler for CPUs knows none of the calls."""
    client = registry.client("cpu")
    assert not can_fuse_attention(client)
    kernels = CudaKernels(client)
    types = [TensorType((2, 4, 16, size), dtypes.of("bfloat16")) for size in (8, 16)]
    b = Builder(types)
    small, large = b.parameters
    with pytest.warns(BridgeWarning, match=r"cudnn\$fmhaSoftmax of bf16\[2,4,16,8\]"):
        assert kernels.attention(b, small, small, small, None, PLAIN) is None
    # A second warning would be an error.
    assert kernels.attention(b, large, large, large, None, CAUSAL) is None
    sums = b.full((2, 4, 16), 0, dtypes.of("float32"))
    assert kernels.attention_gradients(b, *[small] * 5, sums, PLAIN) is None
    assert CudaKernels(client).attention(b, small, small, small, None, PLAIN) is None
