"""Depthwise convolutions by the custom call: numbers, calls, refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax
from torch.nn import functional

from pjrt_bridge import dtypes
from pjrt_bridge.errors import InvalidArgument
from pjrt_bridge.jax_interop import torch_op
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Program, TensorType, inverse_order
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.kernel_attributes import Convolution
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu import depthwise_calls
from pjrt_bridge_cpu.depthwise_calls import TARGET
from pjrt_bridge_cpu.kernels import XlaKernels
from tests.cpu.helpers import emitted
from tests.extent import examples

FORWARD, TURNED, GRADIENT = ("NC", "OI", "NC"), ("NC", "IO", "NC"), ("CN", "IO", "NC")
pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert depthwise_calls.can_convolve(client)
    monkeypatch.setattr(depthwise_calls, "LEAST", 1)


def own() -> XlaKernels:
    kernels = XlaKernels()
    kernels.can_convolve = True
    return kernels


def written(
    kernels: Kernels,
    shapes: Sequence[tuple[int, ...]],
    how: Convolution,
    dtype: str,
    *,
    last: bool = False,
) -> Program:
    """A convolution of arrays of these shapes; with channels last in memory, if they are data."""
    kind, wide = dtypes.of(dtype), dtypes.of("float32")
    is_data = (True, how.dimension_numbers[0].startswith("CN"))
    order = (0, *range(2, len(shapes[0])), 1)
    given = [
        tuple(shape[dim] for dim in order) if last and data else shape
        for shape, data in zip(shapes, is_data, strict=True)
    ]
    b = Builder([TensorType(shape, kind) for shape in given])
    sides = [
        b.transpose(value, inverse_order(order)) if last and data else value
        for value, data in zip(b.parameters, is_data, strict=True)
    ]
    return b.finish([kernels.convolution(b, *sides, how, accumulator=wide, dtype=kind)])


def named(letters: Sequence[str], spatial: int) -> tuple[str, str, str]:
    first, second, third = (part + "HW"[-spatial:] for part in letters)
    return first, second, third


def padded(letters: Sequence[str], *, stride: int = 1, **groups: int) -> Convolution:
    """Windows of two dimensions, with one zero before and behind the data."""
    return Convolution(
        dimension_numbers=named(letters, 2),
        window_strides=(stride, stride),
        padding=((1, 1), (1, 1)),
        lhs_dilation=(1, 1),
        rhs_dilation=(1, 1),
        **groups,
    )


def drawn(shape: Sequence[int]) -> Any:
    """Numbers whose products and sums are exact."""
    return np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)


def compared(
    client: Client, shapes: Sequence[tuple[int, ...]], how: Convolution, dtype: str, last: bool
) -> None:
    """The call against the operation of StableHLO, as the interpreter computes it."""
    program = written(own(), shapes, how, dtype, last=last)
    assert program.text.count(f"@{TARGET}(") == 1
    arrays = [drawn(shape).astype(dtypes.of(dtype).numpy) for shape in shapes]
    # Sums are rounded once.
    wide = [array.astype(np.float32) for array in arrays]
    (exact,) = evaluate(written(Kernels(), shapes, how, "float32"), *wide)
    expected = np.asarray(exact).astype(dtypes.of(dtype).numpy)
    order = (0, *range(2, len(shapes[0])), 1)
    is_data = (True, how.dimension_numbers[0].startswith("CN"))
    given = [
        np.ascontiguousarray(array.transpose(order)) if last and data else array
        for array, data in zip(arrays, is_data, strict=True)
    ]
    (found,) = client.compile(program)(*given)
    np.testing.assert_array_equal(np.asarray(found), expected)


@st.composite
def windows(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Sizes of the weights and of the data, and the window."""
    spatial = draw(st.integers(1, 2))

    def each(values: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(values) for _ in range(spatial))

    kernel, sizes = each(st.integers(1, 4)), each(st.integers(1, 21))
    window = {
        "window_strides": each(st.integers(1, 3)),
        "padding": each(st.tuples(st.integers(-1, 3), st.integers(-1, 3))),
        "lhs_dilation": each(st.integers(1, 3)),
        "rhs_dilation": each(st.integers(1, 2)),
    }
    for size, taps, (low, high), inner, step in zip(
        sizes,
        kernel,
        window["padding"],
        window["lhs_dilation"],
        window["rhs_dilation"],
        strict=True,
    ):
        assume(low + high + (size - 1) * inner + 1 >= (taps - 1) * step + 1)
    return kernel, sizes, window


CHANNELS = st.sampled_from([2, 3, 16, 17, 33, 48])
DTYPE = st.sampled_from(["float32", "bfloat16"])


@settings(max_examples=examples(200), deadline=None)
@given(windows(), st.integers(1, 2), CHANNELS, DTYPE, st.booleans(), st.booleans())
def test_it_is_the_convolution(
    client: Client,
    window: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]],
    batch: int,
    channels: int,
    dtype: str,
    last: bool,
    turned: bool,
) -> None:
    kernel, sizes, given = window
    sides = (1, channels) if turned else (channels, 1)
    letters = named(TURNED if turned else FORWARD, len(kernel))
    how = Convolution(dimension_numbers=letters, feature_group_count=channels, **given)
    compared(client, [(batch, channels, *sizes), (*sides, *kernel)], how, dtype, last)


@settings(max_examples=examples(150), deadline=None)
@given(windows(), st.integers(1, 3), CHANNELS, DTYPE, st.booleans())
def test_it_is_the_gradient_of_the_weights(
    client: Client,
    window: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]],
    batch: int,
    channels: int,
    dtype: str,
    last: bool,
) -> None:
    taps, sizes, given = window
    given = {**given, "lhs_dilation": (1,) * len(taps)}
    # The result's gradient is as large as such windows of the data are many.
    results = [
        (low + size + high - (own - 1) * stride - 1) // step + 1
        for size, own, stride, (low, high), step in zip(
            sizes,
            taps,
            given["window_strides"],
            given["padding"],
            given["rhs_dilation"],
            strict=True,
        )
    ]
    assume(min(results) > 0)
    spatial = len(taps)
    how = Convolution(
        dimension_numbers=named(GRADIENT, spatial), batch_group_count=channels, **given
    )
    shapes = [(batch, channels, *sizes), (batch, channels, *results)]
    made = evaluate(written(Kernels(), shapes, how, "float32"), *map(drawn, shapes))[0]
    assume(math.prod(np.asarray(made).shape[2:]) <= 64)
    compared(client, shapes, how, dtype, last)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
def test_large_ones_are_divided_among_threads(client: Client, stride: int, last: bool) -> None:
    how = padded(FORWARD, stride=stride, feature_group_count=40)
    x, weight = drawn((2, 40, 130, 140)), drawn((40, 1, 3, 3))
    program = written(own(), [x.shape, weight.shape], how, "float32", last=last)
    data = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if last else x
    (found,) = client.compile(program)(data, weight)
    sides = torch.from_numpy(x), torch.from_numpy(weight)
    expected = functional.conv2d(*sides, stride=stride, padding=1, groups=40)
    np.testing.assert_array_equal(np.asarray(found), expected.numpy())


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("where", ["data", "weights"])
@pytest.mark.parametrize("special", [math.nan, math.inf])
def test_what_is_no_number_stays_where_it_is(
    client: Client, special: float, where: str, last: bool
) -> None:
    """As StableHLO has it: zeros before and behind the data are multiplied, too."""
    how = padded(FORWARD, feature_group_count=3)
    x, weight = drawn((1, 3, 6, 5)), drawn((3, 1, 3, 3))
    (x if where == "data" else weight)[(0, 1, 2, 2) if where == "data" else (1, 0, 0, 1)] = special
    shapes = [x.shape, weight.shape]
    (expected,) = evaluate(written(Kernels(), shapes, how, "float32"), x, weight)
    data = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if last else x
    (found,) = client.compile(written(own(), shapes, how, "float32", last=last))(data, weight)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("where", ["data", "grad"])
def test_what_is_no_number_changes_the_gradients_that_it_meets(
    client: Client, where: str, last: bool
) -> None:
    how = padded(GRADIENT, batch_group_count=3)
    x, grad = drawn((2, 3, 6, 5)), drawn((2, 3, 6, 5))
    # In a corner, which not all weights meet.
    (x if where == "data" else grad)[1, 1, 0, 0] = math.inf
    shapes = [x.shape, grad.shape]
    (expected,) = evaluate(written(Kernels(), shapes, how, "float32"), x, grad)
    given = [
        np.ascontiguousarray(item.transpose(0, 2, 3, 1)) if last else item for item in (x, grad)
    ]
    (found,) = client.compile(written(own(), shapes, how, "float32", last=last))(*given)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
    assert np.isfinite(np.asarray(found)[0, [0, 2]]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_training_in_pytorch(dtype: torch.dtype, order: torch.memory_format) -> None:
    torch.manual_seed(0)
    conv = functional.conv2d
    x, w = torch.randn(2, 24, 11, 13).to(dtype, memory_format=order), torch.randn(24, 1, 3, 3)
    calls = emitted(lambda x, w: conv(x, w, stride=2, padding=1, groups=24), x, w.to(dtype))
    assert calls.count(f"@{TARGET}(") == 1

    def step(function: Any, *sides: torch.Tensor) -> list[torch.Tensor]:
        leaves = [side.clone().requires_grad_() for side in sides]
        y = function(*leaves, stride=2, padding=1, groups=24)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves)]

    found = step(torch.compile(conv, backend="pjrt"), x, w.to(dtype))
    exact = step(conv, x.double(), w.to(dtype).double())
    for item, expected in zip(found, exact, strict=True):
        error = (item.double() - expected).abs().max() / expected.abs().max()
        assert error < (1e-5 if dtype == torch.float32 else 2e-2)


X, W = (
    TensorType((1, 2, 5, 5), dtypes.of("float32")),
    TensorType((2, 1, 3, 3), dtypes.of("float32")),
)
WINDOW = [0, 0, 1, 2, 5, 5, 3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 0, 0]


def changed(**numbers: int) -> list[int]:
    names = ("gradient", "last", "batches", "channels", "height", "width", "rows", "columns")
    found = list(WINDOW)
    for name, number in numbers.items():
        found[names.index(name) if name in names else int(name[1:])] = number
    return found


NARROW = TensorType((2, 1, 3, 3), dtypes.of("bfloat16"))
INTEGERS = TensorType((1, 2, 5, 5), dtypes.of("int32"))
REFUSED: dict[str, tuple[TensorType, TensorType, list[int], str]] = {
    "other element types": (X, NARROW, WINDOW, "different element types"),
    "integers": (INTEGERS, W, WINDOW, "found element type"),
    "another flag": (X, W, changed(gradient=2), "number 0 of its window is 2"),
    "no channels": (X, W, changed(channels=0), "number 3 of its window is 0"),
    "a large number": (X, W, changed(_10=1 << 40), "number 10 of its window is 1099511627776"),
    "other data": (X, W, changed(width=6), "do not fit each other"),
    "another result": (X, W, changed(rows=4), "do not fit each other"),
    "other weights": (X, W, changed(_8=2), "do not fit each other"),
    "too many weights": (X, W, changed(_8=9, _9=9), "do not fit each other"),
    "a gradient of dilated data": (X, W, changed(gradient=1, _12=2), "do not fit each other"),
    "too few numbers": (X, W, WINDOW[:-1], "not those that the bridge writes"),
    "windows that are too far": (X, W, changed(_14=1 << 29, _15=1 << 29), "too large for it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    data, weights, window, reason = REFUSED[name]
    b = Builder([data, weights])
    result = TensorType((1, 2, 3, 3), dtypes.of("float32"))
    config = {"window": np.array(window, np.int64)}
    (found,) = b.custom_call(TARGET, b.parameters, [result], backend_config=config)
    arrays: list[Any] = [np.zeros(item.shape, item.dtype.numpy) for item in (data, weights)]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(client.compile(b.finish([found]))(*arrays)[0])


@pytest.mark.parametrize("train", [False, True])
def test_functions_of_jax(train: bool) -> None:
    """With channels last, as people write them there."""

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (2, 1), "SAME", feature_group_count=20, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def step(x: Any, w: Any) -> Any:
        return jax.grad(lambda *sides: (function(*sides) ** 2).sum(), (0, 1))(x, w)

    chosen = step if train else function
    operator = torch_op(chosen)
    sides = torch.from_numpy(drawn((2, 9, 8, 20))), torch.from_numpy(drawn((3, 3, 1, 20)))
    text = emitted(lambda *given: operator(*given), *sides)
    assert text.count(f"@{TARGET}(") == (3 if train else 1)
    found = torch.compile(lambda *given: operator(*given), backend="pjrt")(*sides)
    expected = chosen(*(jnp.asarray(side.numpy()) for side in sides))
    for item, exact in zip(
        found if train else [found], expected if train else [expected], strict=True
    ):
        np.testing.assert_array_equal(item.numpy(), np.asarray(exact))


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_convolve
