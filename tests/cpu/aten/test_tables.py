"""Rows of tables with calls: every place, and places that are none."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from pjrt_bridge import dtypes
from pjrt_bridge.errors import HostFallbackWarning
from pjrt_bridge.mixed.segment import MAX_FAILURES
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.bind.segments import HostSegment
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge_cpu.aten import tables
from pjrt_bridge_cpu.aten.calls import TARGET
from pjrt_bridge_cpu.aten.rules import FLOAT32, UsableKernels
from pjrt_bridge_cpu.aten.uses import lowerings
from tests.cpu.aten.comparing import compare

pytestmark = pytest.mark.usefixtures("always", "fresh")

TABLE = torch.randn(30, 7, generator=torch.Generator().manual_seed(0))
PLACES = torch.tensor([[3, 29, 0], [3, 1, 28]])


@pytest.mark.parametrize("places", [PLACES, PLACES.int(), PLACES[0, 0], PLACES[:, :1], PLACES[::2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embeddings(places: torch.Tensor, dtype: torch.dtype, written: Counter[str]) -> None:
    compare(lambda p, t: functional.embedding(p, t, padding_idx=1), places, TABLE.to(dtype))
    assert written["index_select.out"]


def test_the_gradient_of_a_table() -> None:
    def loss(table: torch.Tensor) -> torch.Tensor:
        return functional.embedding(PLACES, table, padding_idx=3).square()

    compare(loss, TABLE, train=True)


def test_rows_and_columns(written: Counter[str]) -> None:
    compare(lambda t, p: (t.index_select(0, p), t.index_select(-2, p)), TABLE, PLACES[0])
    assert written["index_select.out"]
    written.clear()
    compare(lambda t, p: t.index_select(1, p), TABLE, PLACES[0].clamp(max=6))
    compare(lambda t, p: t.index_select(0, p), TABLE[0], PLACES[0].clamp(max=6))
    assert not written


@pytest.mark.parametrize(
    ("made", "called"),
    [
        (lambda b, table: table, True),
        (lambda b, table: b.add(table, table), False),
        (lambda b, table: b.transpose(table, (1, 0)), False),
    ],
)
def test_tables_that_are_made_or_lie_otherwise_stay_with_xla(
    made: Callable[[Builder, Value], Value], called: bool
) -> None:
    types = [TensorType((8, 8), FLOAT32), TensorType((3,), dtypes.of("int64"))]
    builder = Builder(types)
    table, places = builder.parameters
    context = Context(builder, [TensorType((3, 8), FLOAT32)])
    lowering = lowerings(UsableKernels(lambda name: True))["aten.embedding.default"]
    result = lowering(context, made(builder, table), places)
    assert (TARGET in builder.finish([result]).custom_calls) == called


def test_no_places(written: Counter[str]) -> None:
    compare(functional.embedding, PLACES[:0], TABLE)
    assert not written


def test_small_ones_are_no_calls(written: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LEAST", 43)
    compare(functional.embedding, PLACES, TABLE)
    assert not written


@pytest.mark.parametrize("place", [30, -1, 1 << 40])
def test_a_place_out_of_range_is_an_error_as_in_eager(place: int) -> None:
    places = torch.tensor([0, place])
    strict = torch.compile(functional.embedding, backend="pjrt", options={"fallback": "error"})
    with pytest.raises(IndexError, match="out of range"):
        strict(places, TABLE)
    assert torch.equal(strict(PLACES[0, 1:], TABLE), TABLE[PLACES[0, 1:]])


def test_where_the_host_may_help_it_is_the_error_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    function = torch.compile(functional.embedding, backend="pjrt")

    with warnings.catch_warnings():
        warnings.simplefilter("error", HostFallbackWarning)
        for _ in range(MAX_FAILURES + 1):
            with pytest.raises(IndexError, match="index out of range in self"):
                function(torch.tensor([0, 30]), TABLE)
    # Places are no fault of the device, which takes the next call.
    monkeypatch.delattr(HostSegment, "start")
    assert torch.equal(function(PLACES[0, 1:], TABLE), TABLE[PLACES[0, 1:]])
