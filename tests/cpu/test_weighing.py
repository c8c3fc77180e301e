"""Weighted sums along a dimension by the custom call: values, calls, refusals."""

from __future__ import annotations

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
from pjrt_bridge.stablehlo import inverse_order
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import weighing
from pjrt_bridge_cpu.kernels import XlaKernels
from pjrt_bridge_cpu.weighing import TARGET, weigh
from tests.cpu.helpers import emitted
from tests.extent import examples

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert weighing.can_weigh(client)
    monkeypatch.setattr(weighing, "LEAST", 1)


def summed(x: Array, dim: int, places: Array, weights: Array) -> Array:
    terms = np.take(x, np.maximum(places, 0), dim)
    shape = [size if d in (dim, dim + 1) else 1 for d, size in enumerate(terms.shape)]
    products = terms * weights.astype(x.dtype).reshape(shape)
    result: Array = np.where((places >= 0).reshape(shape), products, 0).sum(dim + 1)
    return result


@settings(max_examples=examples(120), deadline=None)
@given(st.data())
def test_the_sums_are_those_of_numpy(client: Client, data: st.DataObject) -> None:
    """By the call and in the portable form, in any order in memory."""
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dim = data.draw(st.integers(0, len(shape) - 1))
    order = data.draw(st.permutations(range(len(shape))))
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    size = (data.draw(st.integers(1, 20)), data.draw(st.integers(0, 4)))
    places, weights = rng.integers(-1, shape[dim], size), rng.normal(size=size)
    x = rng.normal(size=shape).astype(dtype)
    unread = np.setdiff1d(np.arange(shape[dim]), places)
    x[(slice(None),) * dim + (unread,)] = np.nan
    own = XlaKernels()
    own.can_weigh = True
    expected = summed(x, dim, places, weights)
    for kernels in (own, Kernels()):
        given = np.ascontiguousarray(x.transpose(order))
        b = Builder([TensorType(given.shape, dtypes.of(dtype))])
        value = b.transpose(b.parameters[0], inverse_order(order))
        program = b.finish([kernels.weigh_along(b, value, dim, places, weights)])
        assert (TARGET in program.text) == (kernels is own and places.size > 0)
        found = np.asarray(client.compile(program)(given)[0])
        assert found.dtype == x.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(300, 70, 1), (1, 70, 400), (40, 70, 9), (1, 5000, 1)])
def test_large_ones_are_divided_among_threads(client: Client, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(np.float32)
    places, weights = rng.integers(-1, shape[1], (3000, 3)), rng.normal(size=(3000, 3))
    b = Builder([TensorType(shape, dtypes.of("float32"))])
    (found,) = client.compile(b.finish([weigh(b, b.parameters[0], places, weights)]))(x)
    np.testing.assert_allclose(
        np.asarray(found), summed(x, 1, places, weights), rtol=1e-5, atol=1e-5
    )


def test_operators_of_pytorch_call_it() -> None:
    x = torch.randn(2, 3, 20, 20)
    for function in (
        lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda x: functional.interpolate(x, size=(7, 9), mode="bicubic", antialias=True),
        lambda x: functional.adaptive_avg_pool2d(x, 7),
    ):
        torch._dynamo.reset()
        assert TARGET in emitted(function, x)


def test_programs_for_other_plugins_have_none() -> None:
    b = Builder([TensorType((4, 4), dtypes.of("float32"))])
    places = np.array([[0, 1]])
    found = XlaKernels().weigh_along(b, b.parameters[0], 0, places, np.ones((1, 2)))
    assert TARGET not in b.finish([found]).text


def test_small_ones_and_other_types_are_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    own = XlaKernels()
    own.can_weigh = True
    for least, dtype in ((9, "float32"), (8, "complex64")):
        monkeypatch.setattr(weighing, "LEAST", least)
        b = Builder([TensorType((4, 4), dtypes.of(dtype))])
        found = own.weigh_along(b, b.parameters[0], 0, np.array([[0, 1]]), np.ones((1, 2)))
        assert TARGET not in b.finish([found]).text


X, PLACES, WEIGHTS = (
    TensorType(shape, dtypes.of(name))
    for shape, name in (((2, 3, 4), "float32"), ((2, 3), "int32"), ((2, 3), "float32"))
)
REFUSED: dict[str, tuple[Sequence[TensorType], TensorType, str]] = {
    "two operands": ((X, PLACES), X, "three operands|3 operands"),
    "places of floats": ((X, WEIGHTS, WEIGHTS), X, "element types"),
    "another result": (
        (X, PLACES, WEIGHTS),
        TensorType((2, 3, 4), dtypes.of("float64")),
        "element types",
    ),
    "other weights": (
        (X, PLACES, TensorType((3, 3), WEIGHTS.dtype)),
        X,
        "do not fit each other",
    ),
    "another count": ((X, PLACES, WEIGHTS), TensorType((2, 4, 4), X.dtype), "do not fit"),
    "another inner dimension": (
        (X, PLACES, WEIGHTS),
        TensorType((2, 3, 5), X.dtype),
        "do not fit each other",
    ),
    "no elements": (
        (TensorType((2, 0, 4), X.dtype), PLACES, WEIGHTS),
        X,
        "do not fit each other",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    types, result, reason = REFUSED[name]
    b = Builder(types)
    (found,) = b.custom_call(TARGET, b.parameters, [result], backend_config={})
    executable = client.compile(b.finish([found]))
    arrays = [np.zeros(type.shape, type.dtype.numpy) for type in types]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(executable(*arrays)[0])


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_weigh
