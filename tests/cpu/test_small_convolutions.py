"""Small convolutions by the custom call: numbers, calls, refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pjrt_bridge import dtypes
from pjrt_bridge.errors import InvalidArgument
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Program, TensorType
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.kernel_attributes import Convolution
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu import small_convolutions
from pjrt_bridge_cpu.kernels import XlaKernels
from pjrt_bridge_cpu.small_convolutions import TARGET
from tests.cpu.helpers import emitted
from tests.cpu.test_depthwise_calls import drawn, named, padded, windows
from tests.extent import examples

FORWARD, TURNED = ("NC", "OI", "NC"), ("NC", "IO", "NC")
pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _registered(client: Client) -> None:
    assert small_convolutions.can_convolve_small(client)


def own() -> XlaKernels:
    kernels = XlaKernels()
    kernels.can_convolve_small = True
    return kernels


def written(
    kernels: Kernels, shapes: Sequence[Sequence[int]], how: Convolution, dtype: str
) -> Program:
    kind, wide = dtypes.of(dtype), dtypes.of("float32")
    b = Builder([TensorType(tuple(shape), kind) for shape in shapes])
    return b.finish([kernels.convolution(b, *b.parameters, how, accumulator=wide, dtype=kind)])


def compared(client: Client, shapes: Sequence[Sequence[int]], how: Convolution, dtype: str) -> None:
    """The call against the operation of StableHLO, as the interpreter computes it."""
    program = written(own(), shapes, how, dtype)
    assert program.text.count(f"@{TARGET}(") == 1
    arrays = [drawn(shape).astype(dtypes.of(dtype).numpy) for shape in shapes]
    # Sums are rounded once.
    wide = [array.astype(np.float32) for array in arrays]
    (exact,) = evaluate(written(Kernels(), shapes, how, "float32"), *wide)
    (found,) = client.compile(program)(*arrays)
    expected = np.asarray(exact).astype(dtypes.of(dtype).numpy)
    np.testing.assert_array_equal(np.asarray(found), expected)


@settings(max_examples=examples(200), deadline=None)
@given(
    windows(),
    st.integers(1, 2),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([1, 3, 4, 6]),
    st.sampled_from(["float32", "bfloat16"]),
    st.sampled_from([FORWARD, TURNED]),
)
def test_it_is_the_convolution(
    client: Client,
    drawn_window: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]],
    batches: int,
    groups: int,
    inputs: int,
    outputs: int,
    dtype: str,
    letters: Sequence[str],
) -> None:
    kernel, sizes, window = drawn_window
    if math.prod(kernel) == 1 or groups * inputs == groups * outputs == groups:
        return
    how = Convolution(
        dimension_numbers=named(letters, len(sizes)), feature_group_count=groups, **window
    )
    firsts = {"N": batches, "C": groups * inputs, "O": groups * outputs, "I": inputs}
    shapes = [
        (*(firsts[letter] for letter in part), *spatial)
        for part, spatial in zip(letters, (sizes, kernel), strict=False)
    ]
    compared(client, shapes, how, dtype)


@pytest.mark.parametrize(
    "shapes", [[(1, 16, 40, 33), (18, 16, 3, 3)], [(5, 8, 20, 33), (12, 8, 3, 3)]]
)
def test_a_larger_one_is_divided_among_threads(
    client: Client, shapes: Sequence[tuple[int, ...]]
) -> None:
    compared(client, shapes, padded(FORWARD), "float32")


def test_zeros_around_the_data_are_multiplied(client: Client) -> None:
    """As StableHLO pads: an infinite weight makes NaN of them."""
    how = padded(FORWARD)
    x, weight = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 3, 3), np.float32)
    weight[0, 0, 0, 0] = np.inf
    program = written(own(), [x.shape, weight.shape], how, "float32")
    (found,) = client.compile(program)(x, weight)
    (expected,) = evaluate(written(Kernels(), [x.shape, weight.shape], how, "float32"), x, weight)
    np.testing.assert_array_equal(np.asarray(found), expected)


def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.conv2d(x, weight, padding=1).relu()


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], torch.dtype, bool]] = {
    "a picture": ((1, 3, 32, 32), (8, 3, 3, 3), torch.float32, True),
    "half precision": ((2, 3, 32, 32), (8, 3, 3, 3), torch.bfloat16, True),
    "many products": ((8, 64, 32, 32), (64, 64, 3, 3), torch.float32, False),
    "one place": ((1, 8, 32, 32), (8, 8, 1, 1), torch.float32, False),
    "a large kernel": ((1, 1, 32, 32), (4, 1, 9, 9), torch.float32, False),
    "long floats": ((1, 3, 32, 32), (8, 3, 3, 3), torch.float64, False),
}


@pytest.mark.parametrize("name", CASES)
def test_which_convolutions_of_torch_are_calls(name: str) -> None:
    shape, sizes, dtype, calls = CASES[name]
    x, weight = torch.randn(shape, dtype=dtype), torch.randn(sizes, dtype=dtype)
    assert (f"@{TARGET}(" in emitted(lambda *given: layer(*given), x, weight)) == calls
    found = torch.compile(layer, backend="pjrt")(x, weight)
    expected = layer(x.double(), weight.double())
    tolerance = 2.0**-7 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(
        found.double(), expected, rtol=0, atol=tolerance * float(expected.abs().max())
    )


def test_gradients_are_those_of_eager() -> None:
    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return layer(x, weight).square().sum()

    given = [torch.randn(2, 3, 16, 16), torch.randn(4, 3, 3, 3)]
    found, expected = ([item.clone().requires_grad_() for item in given] for _ in range(2))
    torch.compile(loss, backend="pjrt")(*found).backward()
    loss(*expected).backward()
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left.grad, right.grad, rtol=1e-4, atol=1e-3)


X, W, Y = (
    TensorType(shape, dtypes.of("float32")) for shape in ((1, 2, 4, 4), (3, 2, 3, 3), (1, 3, 2, 2))
)
WINDOW = [1, 1, 2, 3, 4, 4, 2, 2, 3, 3, 1, 1, 1, 1, 1, 1, 0, 0]


def changed(at: int, number: int) -> list[int]:
    return [*WINDOW[:at], number, *WINDOW[at + 1 :]]


HALF, LONG = dtypes.of("bfloat16"), dtypes.of("float64")
REFUSED: dict[str, tuple[Sequence[TensorType], TensorType, list[int] | None, str]] = {
    "one operand": ((X,), Y, WINDOW, "two operands and one result"),
    "no attribute": ((X, W), Y, None, "not those that the bridge writes"),
    "a short attribute": ((X, W), Y, WINDOW[:-1], "not those that the bridge writes"),
    "no batch": ((X, W), Y, changed(0, 0), "number 0 of its window is 0"),
    "a long step": ((X, W), Y, changed(10, 1 << 40), "number 10 of its window"),
    "zeros before": ((X, W), Y, changed(17, -(1 << 40)), "number 17 of its window"),
    "long floats": ((TensorType(X.shape, LONG), W), Y, WINDOW, "element type"),
    "two types": ((TensorType(X.shape, HALF), W), Y, WINDOW, "different element types"),
    "other data": ((TensorType((1, 2, 4, 5), X.dtype), W), Y, WINDOW, "do not fit each other"),
    "other weights": ((X, TensorType((3, 2, 3, 2), X.dtype)), Y, WINDOW, "do not fit each other"),
    "another result": ((X, W), TensorType((1, 4, 2, 2), X.dtype), WINDOW, "do not fit each other"),
    "many taps": ((X, W), Y, changed(8, 65), "do not fit each other"),
    "far windows": ((X, W), Y, changed(15, 1 << 30), "too large for it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    types, result, window, reason = REFUSED[name]
    b = Builder(types)
    config = {} if window is None else {"window": np.array(window, np.int64)}
    program = b.finish(b.custom_call(TARGET, b.parameters, [result], backend_config=config))
    arrays: list[Any] = [np.zeros(type.shape, type.dtype.numpy) for type in types]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(client.compile(program)(*arrays)[0])


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_convolve_small
