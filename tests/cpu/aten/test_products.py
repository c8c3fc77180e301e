"""Products with calls: sides in any order, and which are left to XLA."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pjrt_bridge_cpu.aten import attention, convolution, findings, products, rows
from pjrt_bridge_cpu.aten.calls import KernelCall
from tests.cpu.aten.comparing import compare
from tests.extent import examples

pytestmark = pytest.mark.usefixtures("always", "fresh")

FLOATS = [torch.float32, torch.bfloat16]


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


@pytest.fixture
def narrow_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor for which the BLAS has no kernels, with calls of oneDNN at any size."""
    monkeypatch.setattr(products, "blas_lacks_its_instructions", lambda: True)
    for name in ("ONEDNN_LEAST", "ONEDNN_ROWS"):
        monkeypatch.setattr(products, name, 1)


@pytest.mark.usefixtures("narrow_blas")
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 19, 5), (7, 1, 5), (7, 19, 1), (40, 19, 90)])
def test_transposed_weights_by_onednn(
    shape: tuple[int, int, int], written: Counter[str], emitted: list[KernelCall]
) -> None:
    m, k, n = shape
    for x in (torch.randn(m, k), torch.randn(k, m).mT):
        compare(lambda x, y: x @ y.mT, x, torch.randn(n, k), train=True)
    assert written["mkldnn_convolution.default"]
    assert not written["mm.out"]
    assert {call.cut and tuple(call.cut.results) for call in emitted} <= {(0,), (1,), (3,)}


@pytest.mark.usefixtures("narrow_blas")
def test_what_onednn_is_slow_at_stays(written: Counter[str]) -> None:
    """Weights that are not transposed, which it takes element by element, batches, bfloat16."""
    x, y = torch.randn(7, 19), torch.randn(19, 5)
    compare(torch.mm, x, y)
    compare(torch.bmm, x.expand(2, 7, 19), y.mT.contiguous().expand(2, 5, 19).mT)
    compare(torch.mm, x.bfloat16(), turned(y).bfloat16())
    assert not written["mkldnn_convolution.default"]


@pytest.mark.usefixtures("narrow_blas")
def test_where_onednn_is_not_usable_the_blas_is(
    written: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "is_usable", lambda library, use: "mkldnn" not in use)
    compare(torch.mm, torch.randn(7, 19), turned(torch.randn(19, 5)))
    assert written == {"mm.out": 1}


@pytest.mark.parametrize("ratio", [0.7, 1.3])
def test_products_of_gradients_where_they_were_measured_to_be_faster(
    ratio: float, written: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ("product of sides in order float32", "product of a transposed left side float32")
    monkeypatch.setattr(findings, "measured", lambda library: {kind: {1: ratio} for kind in kinds})
    monkeypatch.setattr(products, "MEASURED_LEAST", 1)
    compare(lambda x, y: torch.tanh(x) @ y.mT, torch.randn(40, 70), torch.randn(90, 70), train=True)
    # Beside the forward product there are two for the gradients.
    assert (written["mm.out"] >= 3) == (ratio < 1)
    assert written["mm.out"] >= 1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_linear_layers(bias: bool, dtype: torch.dtype, written: Counter[str]) -> None:
    layer = torch.nn.Linear(19, 33, bias=bias).to(dtype)
    compare(layer, torch.randn(3, 7, 19).to(dtype), train=True)
    assert written["mm.out"]
    assert bool(written["linear.out"]) == (bias and dtype == torch.bfloat16)


@pytest.mark.parametrize(("large", "pieces"), [(0, 2), (1 << 28, 1)])
def test_large_products_have_a_part_more_for_each_thread(
    large: int, pieces: int, emitted: list[KernelCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "LARGE", large)
    for shape, dim in (((70, 19), 0), ((9, 19), 1)):
        emitted.clear()
        compare(torch.mm, torch.randn(shape), torch.randn(33, 19).mT)
        cuts = {call.cut and (*call.cut.results, call.cut.pieces) for call in emitted}
        assert cuts == {(dim, pieces)}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (1, 1)])
@pytest.mark.parametrize("which", [(False, False), (True, False), (False, True), (True, True)])
def test_sides_that_are_turned(
    which: tuple[bool, bool], batch: tuple[int, ...], dtype: torch.dtype, written: Counter[str]
) -> None:
    x, y = torch.randn(*batch, 7, 19).to(dtype), torch.randn(*batch, 19, 5).to(dtype)
    sides = [turned(side) if turn else side for side, turn in zip((x, y), which, strict=True)]
    with torch.no_grad():
        compare(torch.matmul, *sides)
    # A batch of one is a product of matrices.
    if dtype == torch.bfloat16 or math.prod(batch) > 1:
        assert written
    elif not which[1]:
        assert not written


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0), (2, 1, 0), (2, 0, 1)])
def test_batches_that_lie_inside(order: tuple[int, ...], dtype: torch.dtype) -> None:
    back = [order.index(dim) for dim in range(3)]
    x = torch.randn([(4, 7, 9)[dim] for dim in order]).to(dtype)
    y = torch.randn([(4, 9, 5)[dim] for dim in order]).to(dtype)
    compare(lambda x, y: torch.bmm(x.permute(back), y.permute(back)), x, y, train=True)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 8, 8), (8, 1, 8), (8, 8, 1), (1, 1, 8), (2, 64, 200)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_sides_of_one(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, k, n = shape
    x, y = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    compare(torch.mm, x, y, train=True)
    compare(lambda x, y: torch.mm(x, y.mT), x.detach(), y.mT.detach().clone(), train=True)


@pytest.mark.parametrize("shape", [(0, 8, 8), (8, 0, 8), (8, 8, 0)])
def test_empty_ones_are_no_calls(shape: tuple[int, int, int], written: Counter[str]) -> None:
    m, k, n = shape
    compare(torch.mm, torch.randn(m, k).bfloat16(), turned(torch.randn(k, n)).bfloat16())
    compare(torch.mm, torch.randn(m, k), turned(torch.randn(k, n)))
    assert not written


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bias", "keywords"),
    [
        ((5,), {}),
        ((1,), {}),
        ((), {}),
        ((7, 5), {}),
        ((7, 1), {}),
        ((5,), {"beta": 2}),
        ((5,), {"alpha": -1.5}),
        ((5,), {"beta": 0}),
    ],
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_with_a_bias(
    bias: tuple[int, ...], keywords: dict[str, Any], dtype: torch.dtype, written: Counter[str]
) -> None:
    values = [torch.randn(shape).to(dtype) for shape in (bias, (7, 19), (5, 19))]
    compare(lambda b, x, w: torch.addmm(b, x, w.mT, **keywords), *values, train=True)
    taken = dtype == torch.bfloat16 and bias == (5,) and not keywords
    assert bool(written["linear.out"]) == taken


def test_what_is_sliced_or_expanded() -> None:
    x, y = torch.randn(8, 10).bfloat16(), torch.randn(10, 12).bfloat16()
    compare(torch.mm, x[::2, 3:7], y[6:, 1::3])
    compare(lambda x, y: torch.mm(x.expand(8, 10), y), x[:1], y)
    compare(lambda x, y: torch.bmm(x.expand(3, 8, 10), y.expand(3, 10, 12)), x, y)


def test_products_of_products(written: Counter[str]) -> None:
    """What a call gives lies as the call states, which those that follow have to know."""
    x, y = torch.randn(9, 9).bfloat16(), torch.randn(9, 9).bfloat16()
    compare(lambda x, y: (x @ y.mT).mT.relu() @ (y.mT @ x).mT, x, y, train=True)
    assert written["mm.out"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_a_number_and_infinities(bad: float) -> None:
    x, y = torch.randn(9, 9), torch.randn(9, 9)
    x[2, 3] = bad
    compare(lambda x, y: x @ y.mT, x, y)
    compare(torch.mm, x.bfloat16(), y.bfloat16())


def test_small_and_narrow_ones_are_no_calls(
    written: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (attention, convolution, products, rows):
        monkeypatch.setattr(module, "LEAST", 1 << 12)
    monkeypatch.setattr(products, "NARROWEST", 16)
    monkeypatch.setattr(products, "ROWS", 64)
    wide = torch.randn(64, 64)
    with torch.no_grad():
        compare(torch.mm, wide[:15].bfloat16(), wide.bfloat16())
        compare(torch.mm, wide[:16, :16].bfloat16(), wide[:16, :15].bfloat16())
        compare(torch.mm, wide[:1], wide.mT)
        compare(torch.mm, wide, wide.mT)
        compare(torch.mm, wide[:32], wide)
        assert not written
        compare(torch.mm, wide[:32], wide.mT)
        compare(torch.mm, wide.bfloat16(), wide.bfloat16())
    assert written["mm.out"]


@pytest.mark.slow
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(1, 3), max_size=3),
    *[st.integers(1, 40)] * 3,
    st.permutations(range(5)),
    st.permutations(range(5)),
    st.sampled_from(FLOATS),
)
def test_drawn_products(
    batch: list[int],
    m: int,
    k: int,
    n: int,
    first: list[int],
    second: list[int],
    dtype: torch.dtype,
) -> None:
    def drawn(shape: tuple[int, ...], order: list[int]) -> tuple[torch.Tensor, list[int]]:
        chosen = [dim for dim in order if dim < len(shape)]
        tensor = torch.randn([shape[dim] for dim in chosen]).to(dtype)
        return tensor, [chosen.index(dim) for dim in range(len(shape))]

    (x, back_x), (y, back_y) = drawn((*batch, m, k), first), drawn((*batch, k, n), second)
    torch.compiler.reset()
    compare(lambda x, y: x.permute(back_x) @ y.permute(back_y), x, y, train=True)
