"""Sorts by the custom call: values, positions, operators of PyTorch, refusals."""

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
from pjrt_bridge_cpu import sorting
from pjrt_bridge_cpu.kernels import XlaKernels
from pjrt_bridge_cpu.sorting import TARGET
from tests.cpu.helpers import emitted
from tests.extent import examples

WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, -1e-40, 5e-324)
pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorting.can_sort(client)
    monkeypatch.setattr(sorting, "LEAST", 1)


def drawn(seed: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Elements of which some are equal; of floats, some that have no place among numbers."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point:
        shift = seed % (torch.iinfo(dtype).bits - 7)
        return torch.randint(-60, 60, shape, generator=generator).to(dtype) << shift
    x = torch.randn(shape, generator=generator).to(dtype)
    chosen = torch.rand(shape, generator=generator) < 0.5
    special = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    return torch.where(
        chosen, special[torch.randint(0, len(SPECIAL), shape, generator=generator)], x
    )


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_it_is_pytorchs_stable_sort(client: Client, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    dim = data.draw(st.integers(0, len(shape) - 1))
    # Rows of a few elements are inserted; others are counted, by short digits or by long ones.
    shape[dim] = data.draw(st.sampled_from((1, 2, 30, 41, 300, 9000)))
    dtype = data.draw(st.sampled_from((torch.bool, *WHOLE, *FLOATS)))
    descending = data.draw(st.booleans())
    positions = dtypes.of(data.draw(st.sampled_from(("int32", "int64"))))
    x = drawn(data.draw(st.integers(0, 99)), shape, dtype)
    kernels = XlaKernels()
    kernels.can_sort = True
    b = Builder([TensorType(tuple(shape), dtypes.of(str(dtype).removeprefix("torch.")))])
    found = kernels.sort(b, b.parameters[0], dim, descending=descending, positions=positions)
    assert found is not None
    values, places = client.compile(b.finish(found))(x)
    expected = x.sort(dim=dim, descending=descending, stable=True)
    assert places.dtype == positions
    assert torch.equal(torch.from_dlpack(places).long(), expected.indices)
    got, wanted = torch.from_dlpack(values), x.gather(dim, expected.indices)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    if dtype.is_floating_point:
        assert torch.equal((got == 0) & got.signbit(), (wanted == 0) & wanted.signbit())


@pytest.mark.parametrize("shape", [(3000, 7), (64, 2000), (2, 100_000)])
def test_many_rows_are_divided_among_threads(shape: tuple[int, int]) -> None:
    x = drawn(0, shape, torch.float32)
    # Equal elements keep their order, also where PyTorch need not.
    found = torch.compile(lambda x: x.sort(1), backend="pjrt")(x)
    expected = x.sort(dim=1, stable=True)
    torch.testing.assert_close(tuple(found), tuple(expected), equal_nan=True)


def graph(x: torch.Tensor) -> list[torch.Tensor]:
    """Operators that sort."""
    return [
        *x.sort(0),
        x.argsort(-1, descending=True),
        x.T.sort(dim=0, descending=True).values,
        x.kthvalue(7).values,
        x.median(1).values,
        x.nanmedian(),
        x.quantile(0.3, dim=1),
        x[:0].sort(1).indices,
        x[0, 0].sort().values,
    ]


def test_operators_of_pytorch_and_their_gradients() -> None:
    x = torch.randn(40, 60, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(graph, backend="pjrt")
    torch.testing.assert_close(compiled(x), graph(x))
    assert emitted(lambda *given: graph(*given), x).count(TARGET) >= 5
    sides = [x.clone().requires_grad_() for _ in range(2)]
    ordered = torch.compile(lambda x: x.sort(1).values, backend="pjrt")
    weights = torch.arange(60.0)
    (sides[0].sort(1).values @ weights).sum().backward()
    (ordered(sides[1]) @ weights).sum().backward()
    torch.testing.assert_close(sides[1].grad, sides[0].grad)


X, PLACES = (TensorType((4, 8), dtypes.of(name)) for name in ("float32", "int64"))
REFUSED: dict[str, tuple[Sequence[TensorType], Sequence[TensorType], str]] = {
    "two operands": ((X, X), (X, PLACES), "one operand and two results"),
    "another type of values": ((X,), (PLACES, PLACES), "element types"),
    "positions of floats": ((X,), (X, X), "element types"),
    "complex numbers": (
        (TensorType((4, 8), dtypes.of("complex64")),),
        (TensorType((4, 8), dtypes.of("complex64")), PLACES),
        "element types",
    ),
    "another shape": ((X,), (X, TensorType((8, 4), PLACES.dtype)), "not of one shape"),
    "another rank": (
        (TensorType((32,), X.dtype),),
        (TensorType((32,), X.dtype), TensorType((32,), PLACES.dtype)),
        "not of one shape",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    types, results, reason = REFUSED[name]
    b = Builder(types)
    program = b.finish(b.custom_call(TARGET, b.parameters, list(results), backend_config={}))
    arrays: list[Any] = [np.zeros(type.shape, type.dtype.numpy) for type in types]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(client.compile(program)(*arrays)[0])


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_sort


def test_programs_for_other_plugins_have_none() -> None:
    b = Builder([X])
    found = XlaKernels().sort(b, b.parameters[0], 1, descending=False, positions=PLACES.dtype)
    assert found is None
