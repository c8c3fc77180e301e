"""Depthwise convolutions as sums: they are convolutions, and where they are used."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import pjrt_bridge
from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.kernel_attributes import Convolution
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu.depthwise import DepthwiseSums
from tests.extent import examples

FORWARD, TURNED, GRADIENT = ("NC", "OI", "NC"), ("NC", "IO", "NC"), ("CN", "IO", "NC")


def program(kernels, x, weight, letters=FORWARD, dtype="float32", out=None, **given):
    """A convolution of arrays of these shapes, written with these kernels."""
    kind = dtypes.of(dtype)
    wide = dtypes.of("float32") if kind.bits < 32 else kind
    spatial = len(x) - 2
    builder = Builder([TensorType(x, kind), TensorType(weight, kind)])
    arguments = {
        "window_strides": (1,) * spatial,
        "padding": ((0, 0),) * spatial,
        "lhs_dilation": (1,) * spatial,
        "rhs_dilation": (1,) * spatial,
        "dimension_numbers": tuple(part + "DHW"[-spatial:] for part in letters),
        **given,
    }
    if "batch_group_count" not in arguments:
        arguments.setdefault("feature_group_count", x[1])
    how = Convolution(**arguments)
    rounded = dtypes.of(out) if out else wide
    result = kernels.convolution(builder, *builder.parameters, how, accumulator=wide, dtype=rounded)
    return builder.finish([result])


def is_sum(written):
    return "stablehlo.convolution" not in written.text


def numbers(rng, shape):
    """Such that sums of products of them are exact."""
    return rng.integers(-4, 5, shape).astype(np.float32)


@st.composite
def convolutions(draw):
    spatial = draw(st.integers(1, 3))

    def each(values):
        return tuple(draw(values) for _ in range(spatial))

    kernel, sizes = each(st.integers(1, 3)), each(st.integers(1, 6))
    given = {
        "window_strides": each(st.integers(1, 3)),
        "padding": each(st.tuples(st.integers(-1, 3), st.integers(-1, 3))),
        "lhs_dilation": each(st.integers(1, 2)),
        "rhs_dilation": each(st.integers(1, 2)),
    }
    for size, taps, (low, high), inner, step in zip(
        sizes, kernel, given["padding"], given["lhs_dilation"], given["rhs_dilation"], strict=True
    ):
        assume(low + high + (size - 1) * inner + 1 >= (taps - 1) * step + 1)
    return kernel, sizes, given


@settings(max_examples=examples(50))
@given(convolutions(), st.integers(1, 2), st.integers(2, 3), st.integers(1, 2), st.booleans())
def test_a_sum_is_the_convolution(drawn, batch, channels, each, input_first):
    kernel, sizes, given = drawn
    x = (batch, channels, *sizes)
    sides = (channels * each, 1)
    weight = (*(sides[::-1] if input_first else sides), *kernel)
    letters = TURNED if input_first else FORWARD
    written, plain = (
        program(kernels, x, weight, letters, **given) for kernels in (DepthwiseSums(), Kernels())
    )
    assert is_sum(written)
    rng = np.random.default_rng(0)
    arrays = numbers(rng, x), numbers(rng, weight)
    (expected,) = evaluate(plain, *arrays)
    (found,) = pjrt_bridge.client("cpu").compile(written)(*arrays)
    np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training(stride, dilation, each, dtype):
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(
        4, 4 * each, 3, padding=2, stride=stride, dilation=dilation, groups=4, dtype=dtype
    )
    x = torch.randn(2, 4, 9, 8, dtype=dtype)

    def step(function):
        layer.zero_grad()
        leaf = x.clone().requires_grad_()
        out = function(leaf)
        out.square().sum().backward()
        return [out.detach(), leaf.grad, layer.weight.grad.clone(), layer.bias.grad.clone()]

    torch.compiler.reset()
    found = step(torch.compile(layer, backend="pjrt", options={"fallback": "error"}))
    for one, other in zip(found, step(layer), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_rounded_once(dtype):
    rng = np.random.default_rng(0)
    kind = dtypes.of(dtype).numpy
    x, weight = (numbers(rng, s) for s in ((2, 3, 6, 6), (3, 1, 3, 3)))
    written = program(DepthwiseSums(), x.shape, weight.shape, dtype=dtype, out=dtype)
    (found,) = pjrt_bridge.client("cpu").compile(written)(x.astype(kind), weight.astype(kind))
    expected = torch.nn.functional.conv2d(*map(torch.from_numpy, (x, weight)), groups=3)
    np.testing.assert_array_equal(np.asarray(found), expected.numpy().astype(kind))


@pytest.mark.parametrize(
    ("x", "weight", "letters", "given", "summed"),
    [
        ((1, 4, 9, 9), (4, 1, 8, 8), FORWARD, {}, True),
        ((1, 4, 9, 9), (4, 1, 8, 9), FORWARD, {}, False),
        ((1, 4, 9, 9), (6, 2, 3, 3), FORWARD, {"feature_group_count": 2}, False),
        ((1, 1, 9, 9), (4, 1, 3, 3), FORWARD, {}, False),
        ((0, 4, 9, 9), (4, 1, 3, 3), FORWARD, {}, False),
        ((2, 4, 9, 9), (2, 4, 7, 7), GRADIENT, {"batch_group_count": 4}, True),
        ((2, 4, 9, 9), (2, 4, 1, 1), GRADIENT, {"batch_group_count": 4}, False),
        ((2, 4, 9, 9), (2, 4, 7, 7), GRADIENT, {"batch_group_count": 2}, False),
    ],
)
def test_what_is_summed(x, weight, letters, given, summed):
    assert is_sum(program(DepthwiseSums(), x, weight, letters, **given)) == summed


def test_what_is_not_a_number_stays_where_it_is():
    x, weight = np.zeros((1, 2, 5, 5), np.float32), np.ones((2, 1, 3, 3), np.float32)
    x[0, 1, 2, 2] = math.nan
    written = program(DepthwiseSums(), x.shape, weight.shape, padding=((1, 1), (1, 1)))
    (found,) = pjrt_bridge.client("cpu").compile(written)(x, weight)
    broken = np.isnan(np.asarray(found))
    assert broken[0, 1, 1:4, 1:4].all()
    assert broken.sum() == 9
