"""Concatenations by the custom call: values, which ones are calls, refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import joining
from pjrt_bridge_cpu.joining import TARGET, joined
from pjrt_bridge_cpu.kernels import XlaKernels
from tests.cpu.helpers import emitted
from tests.extent import examples

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert joining.can_join(client)
    monkeypatch.setattr(joining, "LEAST", 1)
    monkeypatch.setattr(joining, "LEAST_PART", 1)


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_parts_are_one_behind_the_other(client: Client, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dim = data.draw(st.integers(0, len(shape) - 1))
    dtype = dtypes.of(data.draw(st.sampled_from(("bool", "bfloat16", "float32", "complex128"))))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays, ranges, expected = [], [], []
    for _ in range(data.draw(st.integers(1, 8))):
        length = data.draw(st.integers(1, 9))
        x = rng.integers(0, 99, [*shape[:dim], length, *shape[dim + 1 :]]).astype(dtype.numpy)
        begin = data.draw(st.integers(0, length))
        end = data.draw(st.integers(begin, length))
        arrays.append(x)
        ranges.append((begin, end))
        expected.append(x.take(range(begin, end), dim))
    kernels = XlaKernels()
    kernels.can_join = True
    b = Builder([TensorType(x.shape, dtype) for x in arrays])
    found = kernels.join(b, b.parameters, ranges, dim)
    wanted = np.concatenate(expected, dim)
    if found is None:
        assert not wanted.nbytes >= len(arrays)
        return
    (got,) = client.compile(b.finish([found]))(*arrays)
    np.testing.assert_array_equal(np.asarray(got), wanted)


@pytest.mark.parametrize("outer", [1, 7])
def test_large_ones_are_divided_among_threads(client: Client, outer: int) -> None:
    sizes, ranges = (400_000, 3, 90_000), [(5, 399_000), (0, 3), (1, 90_000)]
    arrays = [np.random.default_rng(0).random((outer, n, 1), np.float32) for n in sizes]
    b = Builder([TensorType(x.shape, dtypes.of("float32")) for x in arrays])
    (got,) = client.compile(b.finish([joined(b, b.parameters, ranges)]))(*arrays)
    parts = [x[:, begin:end] for x, (begin, end) in zip(arrays, ranges, strict=True)]
    np.testing.assert_array_equal(np.asarray(got), np.concatenate(parts, 1))


Y, Z = torch.randn(4, 6, 8), torch.randn(4, 2, 8)
FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], int]] = {
    "arrays": (lambda y, z: torch.cat([y, z, y], 1), 1),
    "slices": (lambda y, z: torch.cat([y[:, 2:5], z], 1), 1),
    "a roll": (lambda y, z: torch.cat([y[:, 4:], y[:, :4]], 1), 1),
    "what a product reads": (lambda y, z: torch.cat([y, z], 1) @ torch.ones(8, 3), 1),
    "what is computed for the most part": (lambda y, z: torch.cat([y.sin(), z], 1), 0),
    "little that is computed": (lambda y, z: torch.cat([y, y, y, z.sin()], 1), 1),
    "what a loop reads": (lambda y, z: torch.cat([y, z], 1).sum((0, 1)), 0),
    "slices along another dimension": (lambda y, z: torch.cat([y[:2], y[1:3]], 1), 0),
    "steps": (lambda y, z: functional.pad(y[:, ::2], (0, 0, 1, 1), mode="circular"), 0),
    "what lies across": (lambda y, z: torch.cat([y.mT, z.mT], 2), 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_of_pytorch(name: str) -> None:
    function, calls = FUNCTIONS[name]
    found = torch.compile(function, backend="pjrt")(Y, Z)
    torch.testing.assert_close(found, function(Y, Z))
    assert emitted(lambda *given: function(*given), Y, Z).count(f"@{TARGET}(") == calls


X = TensorType((2, 3, 4), dtypes.of("float32"))
WIDE = TensorType((2, 3, 4), dtypes.of("float64"))
REFUSED: dict[str, tuple[Sequence[TensorType], TensorType, list[int], str]] = {
    "none": ((), X, [], "found 0 operands"),
    "nine": ((X,) * 9, X, [0, 3] + [0, 0] * 8, "found 9 operands"),
    "another type": ((WIDE,), X, [0, 3], "operand 0 does not fit"),
    "another rank": ((TensorType((24,), X.dtype),), X, [0, 3], "operand 0 does not fit"),
    "another shape": ((X, TensorType((2, 3, 5), X.dtype)), X, [0, 1, 0, 2], "operand 1 does"),
    "behind the end": ((X,), X, [1, 4], "operand 0 does not fit"),
    "before the begin": ((X,), X, [-1, 2], "operand 0 does not fit"),
    "backwards": ((X, X), X, [2, 1, 0, 3], "operand 0 does not fit"),
    "too few": ((X,), X, [0, 2], "have 2 elements, expected 3"),
    "no range": ((X,), X, [0], "not those that the bridge writes"),
    "a matrix": ((X,), TensorType((6, 4), X.dtype), [0, 3], "not those that the bridge writes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    types, result, ranges, reason = REFUSED[name]
    b = Builder(types)
    config = {"ranges": np.array(ranges, np.int64)} if ranges else {}
    (found,) = b.custom_call(TARGET, b.parameters, [result], backend_config=config)
    arrays: list[Any] = [np.zeros(type.shape, type.dtype.numpy) for type in types]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(client.compile(b.finish([found]))(*arrays)[0])


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_join
