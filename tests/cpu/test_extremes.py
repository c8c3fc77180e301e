"""Positions of extremes by the custom call: values, operators of PyTorch, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.errors import InvalidArgument
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import extremes
from pjrt_bridge_cpu.extremes import TARGET
from pjrt_bridge_cpu.kernels import XlaKernels
from tests.cpu.helpers import emitted
from tests.cpu.test_sorting import FLOATS, WHOLE, drawn
from tests.extent import examples

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert extremes.can_locate(client)
    monkeypatch.setattr(extremes, "LEAST", 1)


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_they_are_those_of_pytorchs_stable_sort(client: Client, data: st.DataObject) -> None:
    """Which puts NaN last and keeps the order of equal elements."""
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    dim = data.draw(st.integers(0, len(shape) - 1))
    shape[dim] = data.draw(st.sampled_from((1, 2, 63, 64, 200, 3000)))
    if dim == 0:
        shape.append(data.draw(st.sampled_from((1, 5, 300))))
    dtype = data.draw(st.sampled_from((torch.bool, *WHOLE, *FLOATS)))
    largest = data.draw(st.booleans())
    positions = dtypes.of(data.draw(st.sampled_from(("int32", "int64"))))
    x = drawn(data.draw(st.integers(0, 99)), shape, dtype)
    kernels = XlaKernels()
    kernels.can_locate = True
    b = Builder([TensorType(tuple(shape), dtypes.of(str(dtype).removeprefix("torch.")))])
    made = kernels.first_extremes(b, b.parameters[0], dim, largest=largest, positions=positions)
    assert made is not None
    (found,) = client.compile(b.finish([made]))(x)
    assert found.dtype == positions
    order = x.sort(dim=dim, descending=largest, stable=True).indices
    if not largest and dtype.is_floating_point:
        # The first NaN is the smallest.
        order = torch.where(x.isnan(), -float("inf"), x.double()).sort(dim=dim, stable=True).indices
        numbers = torch.where(x.isnan(), 0.0, 1.0).sort(dim=dim, stable=True)
        has_nan = (numbers.values == 0).any(dim, keepdim=True)
        order = torch.where(has_nan, numbers.indices, order)
    assert torch.equal(torch.from_dlpack(found).long(), order.select(dim, 0))


@pytest.mark.parametrize("shape", [(300, 2000, 1), (1, 2000, 600), (40, 90, 33)])
def test_large_ones_are_divided_among_threads(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = torch.compile(lambda x: (x.argmax(1), x.argmin(1)), backend="pjrt")(x)
    assert torch.equal(found[0], x.argmax(1))
    assert torch.equal(found[1], x.argmin(1))


def graph(x: torch.Tensor) -> list[torch.Tensor]:
    """Operators that look for extremes."""
    return [
        x.argmax(),
        x.argmin(0),
        x.argmax(-1, keepdim=True),
        *x.max(1),
        *x.T.min(1),
        *x.cummax(1),
        x[0, 0].argmax(),
    ]


def test_operators_of_pytorch_and_their_gradients() -> None:
    x = torch.randn(40, 60, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(graph, backend="pjrt")
    torch.testing.assert_close(compiled(x), graph(x))
    assert emitted(lambda *given: graph(*given), x).count(f"@{TARGET}(") >= 5
    sides = [x.clone().requires_grad_() for _ in range(2)]
    largest = torch.compile(lambda x: x.max(1).values.sum(), backend="pjrt")
    sides[0].max(1).values.sum().backward()
    largest(sides[1]).backward()
    torch.testing.assert_close(sides[1].grad, sides[0].grad)


X, PLACES = TensorType((4, 8, 2), dtypes.of("float32")), TensorType((4, 2), dtypes.of("int64"))
REFUSED: dict[str, tuple[Sequence[TensorType], TensorType, str]] = {
    "two operands": ((X, X), PLACES, "one operand and one result"),
    "positions of floats": ((X,), TensorType((4, 2), X.dtype), "element types"),
    "complex numbers": ((TensorType((4, 8, 2), dtypes.of("complex64")),), PLACES, "element types"),
    "another shape": ((X,), TensorType((2, 4), PLACES.dtype), "do not fit each other"),
    "another rank": ((X,), TensorType((8,), PLACES.dtype), "do not fit each other"),
    "no element": ((TensorType((4, 0, 2), X.dtype),), PLACES, "do not fit each other"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    types, result, reason = REFUSED[name]
    b = Builder(types)
    program = b.finish(b.custom_call(TARGET, b.parameters, [result], backend_config={}))
    arrays: list[Any] = [np.zeros(type.shape, type.dtype.numpy) for type in types]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(client.compile(program)(*arrays)[0])


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_locate
