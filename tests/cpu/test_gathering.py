"""Elements at positions along a dimension by the custom call: values, calls, refusals."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pjrt_bridge import dtypes
from pjrt_bridge.errors import HostFallbackWarning, InvalidArgument
from pjrt_bridge.mixed.segment import MAX_FAILURES
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.bind.segments import HostSegment
from pjrt_bridge_cpu import combining, gathering
from pjrt_bridge_cpu.gathering import TARGET, gather
from pjrt_bridge_cpu.kernels import XlaKernels
from tests.cpu.helpers import emitted
from tests.extent import examples

DTYPES = ("bool", "int8", "uint16", "float16", "bfloat16", "float32", "int64", "complex128")
Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gathering.can_gather(client)
    monkeypatch.setattr(gathering, "LEAST", 1)


@settings(max_examples=examples(120), deadline=None)
@given(st.data())
def test_it_is_the_portable_form(client: Client, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    rank = len(shape)
    dim = data.draw(st.integers(0, rank - 1))
    places = [*shape[:dim], data.draw(st.integers(1, 6)), *shape[dim + 1 :]]
    same = data.draw(st.lists(st.booleans(), min_size=rank, max_size=rank))
    places = [1 if same[d] and d != dim else size for d, size in enumerate(places)]
    dtype = dtypes.of(data.draw(st.sampled_from(DTYPES)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.integers(0, 100, shape).astype(dtype.numpy)
    # What is out of range is moved to the ends.
    index = rng.integers(-2, shape[dim] + 2, places)
    index = index.astype(data.draw(st.sampled_from(("int32", "int64"))))
    own = XlaKernels()
    own.can_gather = True
    found = []
    for kernels in (own, Kernels()):
        b = Builder([TensorType(each.shape, dtypes.of(each.dtype.name)) for each in (x, index)])
        program = b.finish([kernels.gather_along(b, b.parameters[0], dim, b.parameters[1])])
        found.append(np.asarray(client.compile(program)(x, index)[0]))
        sides = ((places[:dim], shape[:dim]), (places[dim + 1 :], shape[dim + 1 :]))
        whole = all(given == wanted or math.prod(given) == 1 for given, wanted in sides)
        assert (TARGET in program.text) == (kernels is own and whole)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("shape", [(64, 50, 1), (1, 50, 64), (300, 5, 7)])
@pytest.mark.parametrize("same", [True, False])
def test_large_ones_are_divided_among_threads(
    client: Client, shape: tuple[int, ...], same: bool
) -> None:
    outer, length, inner = shape
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    index = rng.integers(0, length, (outer, 2000, 1 if same else inner))
    b = Builder([TensorType(each.shape, dtypes.of(each.dtype.name)) for each in (x, index)])
    (got,) = client.compile(b.finish([gather(b, *b.parameters)]))(x, index)
    expected = np.take_along_axis(x, np.broadcast_to(index, (outer, 2000, inner)), 1)
    np.testing.assert_array_equal(np.asarray(got), expected)


def graph(x: torch.Tensor, index: torch.Tensor) -> list[torch.Tensor]:
    """Elements, slices, and a value that lies across in memory."""
    return [
        x.gather(0, index),
        x.gather(1, index),
        x.gather(1, index[:, :1].expand(-1, 40)),
        x.t().gather(1, index.t()),
        torch.take_along_dim(x, index[:, :3], 1),
        x.gather(0, index[:0]),
    ]


def test_operators_of_pytorch_and_their_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 64, generator=generator)
    index = torch.randint(0, 64, (64, 64), generator=generator)
    sides = [x.clone().requires_grad_() for _ in range(2)]
    compiled = torch.compile(graph, backend="pjrt")
    for function, one in zip((graph, compiled), sides, strict=True):
        torch.stack([r.square().sum() for r in function(one, index)]).sum().backward()
    torch.testing.assert_close(compiled(x, index), graph(x, index))
    torch.testing.assert_close(sides[1].grad, sides[0].grad)
    assert emitted(lambda *given: graph(*given), x, index).count(TARGET) >= 4


TABLE = torch.randn(30, 7, generator=torch.Generator().manual_seed(0))
ROWS = torch.tensor([[3, 29, 0], [3, 1, 28]])


@pytest.mark.parametrize("places", [ROWS, ROWS.int(), ROWS[0, 0], ROWS[:, :1], ROWS[::2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_a_table(places: torch.Tensor, dtype: torch.dtype) -> None:
    def embedding(places: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return functional.embedding(places, table, padding_idx=1)

    torch._dynamo.reset()
    table = TABLE.to(dtype)
    assert TARGET in emitted(embedding, places, table)
    found = torch.compile(embedding, backend="pjrt")(places, table)
    assert torch.equal(found, embedding(places, table))


def test_the_gradient_of_a_table() -> None:
    sides = [TABLE.clone().requires_grad_() for _ in range(2)]
    compiled = torch.compile(functional.embedding, backend="pjrt")
    for function, table in zip((functional.embedding, compiled), sides, strict=True):
        function(ROWS, table, padding_idx=3).square().sum().backward()
    torch.testing.assert_close(sides[1].grad, sides[0].grad)


@pytest.mark.parametrize("place", [30, -1, 1 << 40])
def test_a_place_out_of_range_is_an_error_as_in_eager(place: int) -> None:
    places = torch.tensor([0, place])
    strict = torch.compile(functional.embedding, backend="pjrt", options={"fallback": "error"})
    with pytest.raises(IndexError, match="out of range"):
        strict(places, TABLE)
    assert torch.equal(strict(ROWS[0, 1:], TABLE), TABLE[ROWS[0, 1:]])


def test_where_the_host_may_help_it_is_the_error_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    function = torch.compile(functional.embedding, backend="pjrt")

    with warnings.catch_warnings():
        warnings.simplefilter("error", HostFallbackWarning)
        for _ in range(MAX_FAILURES + 1):
            with pytest.raises(IndexError, match="index out of range in self"):
                function(torch.tensor([0, 30]), TABLE)
    # Places are no fault of the device, which takes the next call.
    monkeypatch.delattr(HostSegment, "start")
    assert torch.equal(function(ROWS[0, 1:], TABLE), TABLE[ROWS[0, 1:]])


@settings(max_examples=examples(120), deadline=None)
@given(st.data())
def test_slices_are_those_of_the_portable_form(client: Client, data: st.DataObject) -> None:
    """Reading and adding slices at positions in any dimensions, some of them out of range."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    chosen = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    dims = sorted(chosen)
    places = data.draw(st.lists(st.integers(1, 3), max_size=2))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.integers(0, 100, shape).astype(np.float32)
    positions = [rng.integers(-2, shape[dim] + 2, places) for dim in dims]
    own = XlaKernels()
    own.can_gather = own.can_combine = True
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combining, "LEAST", 1)
        patch.setattr(combining, "LEAST_SLICE", 1)
        for kernels in (own, Kernels()):
            b = Builder(
                [TensorType(each.shape, dtypes.of(each.dtype.name)) for each in (x, *positions)]
            )
            array, *at = b.parameters
            read = kernels.gather_slices(b, array, dims, at)
            added = kernels.combine_slices(b, array, dims, at, read, "sum")
            executable = client.compile(b.finish([read, added]))
            found.append([np.asarray(item) for item in executable(x, *positions)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_programs_for_other_plugins_have_none() -> None:
    b = Builder([TensorType((4, 4), dtypes.of("float32")), TensorType((4, 4), dtypes.of("int64"))])
    assert (
        TARGET
        not in b.finish([XlaKernels().gather_along(b, b.parameters[0], 0, b.parameters[1])]).text
    )


def test_a_position_out_of_range_is_an_error() -> None:
    x, index = torch.randn(300, 300), torch.randint(0, 300, (300, 300))
    index[-1, -1] = 300
    with pytest.raises(RuntimeError, match="index 300 is out of bounds"):
        torch.compile(lambda x, index: x.gather(1, index), backend="pjrt")(x, index)


X, PLACES, WIDE = (
    TensorType((2, 3, 4), dtypes.of(name)) for name in ("float32", "int64", "float64")
)
LONG = TensorType((2, 5, 4), dtypes.of("int64"))
REFUSED: dict[str, tuple[Sequence[TensorType], TensorType, str]] = {
    "one operand": ((X,), X, "two operands and one result"),
    "another result": ((X, PLACES), WIDE, "element types"),
    "positions of floats": ((X, X), X, "element types"),
    "another rank": ((X, TensorType((2, 12), PLACES.dtype)), X, "do not fit each other"),
    "other positions": ((X, LONG), X, "do not fit each other"),
    "no elements": ((TensorType((2, 0, 4), X.dtype), PLACES), X, "do not fit each other"),
    "another outer dimension": (
        (X, TensorType((3, 3, 4), PLACES.dtype)),
        TensorType((3, 3, 4), X.dtype),
        "do not fit each other",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_bridge_does_not_write_is_refused(name: str, client: Client) -> None:
    types, result, reason = REFUSED[name]
    executable = client.compile(_call(types, result))
    arrays = [np.zeros(type.shape, type.dtype.numpy) for type in types]
    with pytest.raises(InvalidArgument, match=reason):
        np.asarray(executable(*arrays)[0])


def _call(types: Sequence[TensorType], result: TensorType) -> Program:
    b = Builder(types)
    (found,) = b.custom_call(TARGET, b.parameters, [result], backend_config={})
    return b.finish([found])


def test_the_plugin_has_kernels_that_call_it(client: Client) -> None:
    kernels = kernels_of(client)
    assert isinstance(kernels, XlaKernels)
    assert kernels.can_gather
