"""Tensors on the device are torch's own: sizes, strides, views, what is written through them."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt_bridge
from pjrt_bridge.errors import DeviceError
from tests.extent import examples

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


def values(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    found = torch.randn(shape) * 3
    return found > 0 if dtype is torch.bool else found.to(dtype)


def assert_alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal in everything that torch tells of a tensor."""
    assert found.device.type == "pjrt"
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.stride() == expected.stride()
    assert found.storage_offset() == expected.storage_offset()
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 2)], ids=str)
def test_to_the_device_and_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    there = values(shape, dtype)
    here = there.to("pjrt")
    assert here.device == torch.device("pjrt:0")
    back = here.cpu()
    assert torch.equal(back.view(torch.uint8) if shape else back, there.view(torch.uint8)
                       if shape else there)  # fmt: skip


def test_a_copy_is_one() -> None:
    there = torch.ones(64)
    here = there.to("pjrt")
    there.add_(1)
    back = here.cpu()
    back.add_(5)
    assert here.cpu().tolist() == [1.0] * 64


def test_printing_and_numbers() -> None:
    here = torch.arange(4.0).to("pjrt")
    assert repr(here) == "tensor([0., 1., 2., 3.], device='pjrt:0')"
    assert here[2].item() == 2.0
    assert here.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert bool((here == here).all())
    assert len(here) == 4
    assert [float(one) for one in here] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda **to: torch.zeros(2, 3, **to),
        lambda **to: torch.ones((2,), dtype=torch.int32, **to),
        lambda **to: torch.full((2, 2), 7.5, **to),
        lambda **to: torch.arange(5, **to),
        lambda **to: torch.arange(1, 9, 2.5, **to),
        lambda **to: torch.linspace(0, 1, 5, **to),
        lambda **to: torch.eye(3, **to),
        lambda **to: torch.tensor([[1, 2], [3, 4]], **to),
        lambda **to: torch.scalar_tensor(3.0, **to),
        lambda **to: torch.tril_indices(3, 3, **to),
    ],
)
def test_factories(make: Any) -> None:
    assert_alike(make(device="pjrt"), make())


def test_empty_tensors_have_the_strides_that_are_asked_for() -> None:
    for device in ("pjrt", "cpu"):
        made = torch.empty((2, 3, 4, 5), device=device, memory_format=torch.channels_last)
        assert made.stride() == (60, 1, 15, 3)
        assert torch.empty_strided((2, 3), (1, 2), device=device).stride() == (1, 2)
    made = torch.empty_strided((2, 3), (1, 2), device="pjrt")
    made.copy_(torch.arange(6.0).view(2, 3))
    assert made.cpu().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_random_numbers_follow_the_seed() -> None:
    def draw() -> list[torch.Tensor]:
        torch.manual_seed(5)
        return [
            torch.randn(100, device="pjrt").cpu(),
            torch.rand(100, device="pjrt").cpu(),
            torch.randint(0, 9, (100,), device="pjrt").cpu(),
            torch.randperm(10, device="pjrt").cpu(),
            torch.empty(100, device="pjrt").normal_().cpu(),
            torch.empty(100, device="pjrt").uniform_(2, 3).cpu(),
            torch.nn.functional.dropout(torch.ones(100, device="pjrt")).cpu(),
        ]

    first, second = draw(), draw()
    assert all(map(torch.equal, first, second))
    assert first[0].std() > 0.5
    assert not torch.equal(first[0], first[4])
    assert 2 <= float(first[5].min()) <= float(first[5].max()) <= 3
    assert sorted(first[3].tolist()) == list(range(10))
    assert set(first[6].tolist()) == {0.0, 2.0}


STEPS: dict[str, Any] = {
    "transpose": lambda x: x.transpose(0, -1) if x.dim() else x,
    "first": lambda x: x[0] if x.dim() and x.shape[0] else x,
    "rest": lambda x: x[1:] if x.dim() else x,
    "every second": lambda x: x[..., ::2] if x.dim() else x,
    "flat": lambda x: x.reshape(-1),
    "new": lambda x: x.unsqueeze(0),
    "windows": lambda x: x.unfold(0, 2, 1) if x.dim() and x.shape[0] > 1 else x,
    "diagonal": lambda x: x.diagonal(0, 0, -1) if x.dim() > 1 else x,
    "expand": lambda x: x.expand(2, *x.shape),
}


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=5), st.data())
def test_views_are_torch_s(names: list[str], data: st.DataObject) -> None:
    base = torch.arange(24.0).view(2, 3, 4)
    there, here = base, base.to("pjrt")
    for name in names:
        there, here = STEPS[name](there), STEPS[name](here)
    assert_alike(here, there)
    assert torch.equal((here * 2 + 1).cpu(), there * 2 + 1)


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from(sorted(set(STEPS) - {"windows", "expand"})), max_size=5))
def test_what_is_written_through_a_view_is_in_all_others(names: list[str]) -> None:
    there = torch.arange(24.0).view(2, 3, 4)
    here = there.to("pjrt")
    other_there, other_here = there[:, 1], here[:, 1]
    views = there, here
    for name in names:
        views = STEPS[name](views[0]), STEPS[name](views[1])
    for view in views:
        view.mul_(2).add_(0.5)
        view.copy_(view.clone() - 3)
    assert torch.equal(here.cpu(), there)
    assert torch.equal(other_here.cpu(), other_there)
    assert here._version == there._version


def test_arguments_that_share_memory() -> None:
    there = torch.arange(6.0)
    here = there.to("pjrt")
    for x in (there, here):
        x[1:].add_(x[:-1].clone())
        x[0].copy_(x[3])
        torch.add(x[:3], x[3:], out=x[:3])
    assert torch.equal(here.cpu(), there)


def test_a_result_is_resized() -> None:
    x = torch.arange(4.0).to("pjrt")
    out = torch.empty(0, device="pjrt")
    assert torch.mul(x, 2, out=out) is out
    assert out.tolist() == [0, 2, 4, 6]
    x.resize_(2, 3)
    assert x.flatten()[:4].tolist() == [0, 1, 2, 3]
    assert x.resize_(2).tolist() == [0, 1]


def test_storages_that_are_shared_do_not_grow() -> None:
    base = torch.arange(6.0).to("pjrt")
    part = base[2:]
    torch.neg(base[:1], out=part.resize_(1))
    assert base.tolist() == [0, 1, 0, 3, 4, 5]
    for tensor in (part, base):
        with pytest.raises(
            DeviceError, match=r"to \(7,\) needs a larger storage, and other tensors"
        ):
            tensor.resize_(7)
    assert base.tolist() == [0, 1, 0, 3, 4, 5]
    del part, tensor
    assert base.resize_(7)[:6].tolist() == [0, 1, 0, 3, 4, 5]


@pytest.mark.parametrize(
    "index",
    [
        lambda x: x[1, 2],
        lambda x: x[..., -1],
        lambda x: x[x > 5],
        lambda x: x[[1, 0]],
        lambda x: x[torch.tensor([1, 0], device=x.device)],
        lambda x: x[torch.tensor([1, 0])],
        lambda x: x[:, torch.tensor([2, 0, 0], device=x.device)],
        lambda x: x.index_select(1, torch.tensor([0, 2], device=x.device)),
        lambda x: torch.where(x > 4, x, -x),
        lambda x: x.masked_fill(x > 4, 0.0),
        lambda x: x.nonzero(),
    ],
)
def test_indexing(index: Any) -> None:
    there = torch.arange(12.0).view(3, 4)
    assert torch.equal(index(there.to("pjrt")).cpu(), index(there))


def test_indexed_writes() -> None:
    there = torch.zeros(3, 4)
    here = there.to("pjrt")
    for x in (there, here):
        x[1] = 5
        x[:, 2] = torch.arange(3.0).to(x.device)
        x[x > 4] = -1
        x[torch.tensor([0, 2], device=x.device)] += 2
        x.index_add_(0, torch.tensor([0], device=x.device), torch.ones(1, 4, device=x.device))
        x.scatter_(1, torch.zeros(3, 1, dtype=torch.long, device=x.device), 9.0)
    assert torch.equal(here.cpu(), there)


def test_other_types_over_the_same_memory() -> None:
    there = torch.randn(2, 4)
    here = there.to("pjrt")
    for kind in (torch.int32, torch.int16, torch.uint8, torch.complex64, torch.float64):
        assert_alike(here.view(kind), there.view(kind))
    here.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    assert torch.equal(here.cpu(), there.abs())
    z = torch.randn(3, dtype=torch.complex64)
    assert_alike(torch.view_as_real(z.to("pjrt")), torch.view_as_real(z))
    assert torch.equal(z.to("pjrt").conj().cpu(), z.conj().resolve_conj())
    assert torch.equal((z.to("pjrt").conj() * 2).cpu(), z.conj() * 2)
    assert torch.equal(z.to("pjrt").conj().imag.cpu(), z.conj().imag)


def test_copies() -> None:
    here = torch.randn(3, 4).to("pjrt")
    for made in (
        here.clone(),
        here.detach().clone(),
        copy.deepcopy(here),
        here.to(here.device, copy=True),
    ):
        made.zero_()
        assert bool(here.any())
    parameter = torch.nn.Parameter(here)
    assert parameter.detach().untyped_storage()._cdata == here.untyped_storage()._cdata
    twin = copy.deepcopy([here, here.t(), parameter])
    twin[0].zero_()
    assert not bool(twin[1].any())
    assert bool(twin[2].any())


def test_several_devices() -> None:
    first = torch.arange(3.0, device="pjrt:0")
    second = first.to("pjrt:1")
    assert second.device.index == 1
    assert (second + 1).device.index == 1
    assert second.cpu().tolist() == [0, 1, 2]
    assert second.to("pjrt:0").add_(1).tolist() == [1, 2, 3]
    with torch.device("pjrt:1"):
        assert torch.ones(2).device.index == 1
    with torch.pjrt.device(1):  # type: ignore[attr-defined]
        assert torch.ones(2, device="pjrt").device.index == 1
    with pytest.raises(DeviceError, match=r"aten\.add.*'pjrt:1' beside 'pjrt:0'"):
        first + second
    with pytest.raises(DeviceError, match="has 2 devices"):
        torch.ones(2, device="pjrt:2")


def test_host_tensors_beside() -> None:
    here = torch.ones(3, device="pjrt")
    assert (here + torch.tensor(2.0)).tolist() == [3, 3, 3]
    with pytest.raises((DeviceError, RuntimeError), match=r"(?s)add.*on cpu|same device"):
        here + torch.ones(3)


def test_memory_is_freed_with_the_last_tensor() -> None:
    def buffers() -> int:
        gc.collect()
        torch.pjrt.synchronize()  # type: ignore[attr-defined]
        return pjrt_bridge.live_handles().get("Buffer", 0)

    here = torch.ones(1000, device="pjrt")
    here.add_(1)
    before = buffers()
    made = [here + 1 for _ in range(10)]
    views = [one[2:] for one in made]
    del made
    assert buffers() == before + 10
    assert all(view.shape == (998,) for view in views)
    del views
    assert buffers() == before


def test_errors_are_those_of_the_operator() -> None:
    here = torch.ones(2, 3, device="pjrt")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        here @ here
    with pytest.raises(IndexError):
        here.sum(5)
    with pytest.raises(RuntimeError):
        here + torch.ones(4, device="pjrt")
    assert (here + 1).sum().item() == 12


PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": lambda x, y: x @ y,
    "mm.out": lambda x, y: torch.mm(x, y, out=torch.zeros_like(x)),
    "mm.out conjugated": lambda x, y: torch.mm(x, y, out=torch.zeros_like(x).conj()),
    "addmm": lambda x, y: torch.addmm(x, y, x, beta=2j),
    "addmm_": lambda x, y: torch.clone(x).conj().addmm_(x, y),
    "bmm": lambda x, y: torch.bmm(x[None], y[None]),
    "baddbmm": lambda x, y: torch.baddbmm(x[None], y[None], x[None]),
    "dot": lambda x, y: torch.dot(x[0], y[0]),
    "vdot": lambda x, y: torch.vdot(x[0], y[0]),
    "mv": lambda x, y: torch.mv(x, y[0]),
    "solve_triangular": lambda x, y: torch.linalg.solve_triangular(x, y, upper=True),
    "solve_triangular negated": lambda x, y: torch.linalg.solve_triangular(
        x.imag, y.imag, upper=False
    ),
    "svdvals": lambda x, y: torch.linalg.svdvals(x @ y),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_conjugated_and_negated_tensors(name: str) -> None:
    # Plain ones between, which have the same shapes and types; four times, until C leads them.
    call = PRODUCTS[name]
    x = torch.tensor([[1 + 2j, 3 - 1j], [0.5j, 2 - 4j]], dtype=torch.complex128)
    for count in range(8):
        y = x + count
        pairs = [(x, y), (x.conj(), y)] if count % 2 else [(x, y.conj()), (x.conj(), y.conj())]
        for one, other in pairs:
            lying = [item.resolve_conj().to("pjrt") for item in (x, y)]
            given = [
                item.conj() if wanted.is_conj() else item
                for item, wanted in zip(lying, (one, other), strict=True)
            ]
            found, expected = call(*given), call(one, other)
            torch.testing.assert_close(found.cpu(), expected.resolve_conj())


def test_writes_into_conjugated_and_negated_tensors() -> None:
    def run(z: torch.Tensor) -> list[torch.Tensor]:
        conjugated, negated = z.clone().conj(), z.clone().conj().imag
        conjugated[1:].mul_(2j)
        copied = z.clone().conj().copy_(z)
        physical = z.clone().conj().conj_physical_()
        negated.add_(1)
        written = z.clone().conj().imag.copy_(z.real)
        return [conjugated, negated, copied, physical, written]

    z = torch.tensor([1 + 2j, 3 + 4j, 5 - 6j])
    for found, expected in zip(run(z.to("pjrt")), run(z), strict=True):
        assert (found.is_conj(), found.is_neg()) == (expected.is_conj(), expected.is_neg())
        torch.testing.assert_close(found.cpu(), expected.resolve_conj().resolve_neg())


def test_tensors_that_overlap_themselves() -> None:
    x = torch.arange(3.0, device="pjrt").expand(2, 3)
    assert x.fill_(3).tolist() == [[3, 3, 3]] * 2
    assert x.zero_().tolist() == [[0, 0, 0]] * 2
    for write in (lambda: x.add_(1), lambda: x.copy_(torch.ones(2, 3)), lambda: x.normal_()):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            write()
    assert x.tolist() == [[0, 0, 0]] * 2


@pytest.mark.filterwarnings("ignore:Use of")
@pytest.mark.parametrize(
    "write",
    [
        lambda x, at: x.index_put_((at,), x.new_full((), 9)),
        lambda x, at: x.index_put_((at,), x.new_full((), 9), accumulate=True),
        lambda x, at: x.masked_fill_(x > 1, 5),
        lambda x, at: x.index_fill_(0, at, 4),
        lambda x, at: x.fill_diagonal_(3),
    ],
)
def test_some_operators_write_into_tensors_that_overlap_themselves(
    write: Callable[..., Any],
) -> None:
    found, expected = torch.arange(6.0, device="pjrt")[2:5], torch.arange(6.0)[2:5]
    write(found.expand(2, 3), torch.tensor([1], device="pjrt"))
    write(expected.expand(2, 3), torch.tensor([1]))
    assert found.tolist() == expected.tolist()


def test_one_storage_as_two_types_in_one_call() -> None:
    x = torch.arange(4, dtype=torch.bfloat16).to("pjrt")
    bits = x.view(torch.int16)
    assert (bits + x).tolist() == (bits.cpu() + x.cpu()).tolist()
    assert torch.where(bits > 0, x, bits).tolist() == [0, 1, 2, 3]


def test_results_keep_the_strides_that_torch_gives_them() -> None:
    x = torch.arange(8).reshape(2, 4)
    for found in (x.t().view(-1, 2, 2).abs(), torch.abs(x.t()), x.t().float().exp()):
        there = found.to("pjrt")
        assert there.stride() == found.stride()
    there = x.to("pjrt").t().view(-1, 2, 2)
    assert there.abs().stride() == x.t().view(-1, 2, 2).abs().stride()


def test_tensors_made_of_data_in_a_context() -> None:
    with torch.device("pjrt"):
        x = torch.tensor([1, 2], dtype=torch.float16)
        y = torch.arange(3.0)
    assert x.device.type == y.device.type == "pjrt"
    assert (x + y[:2]).tolist() == [1, 3]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_results_with_gaps_in_memory_are_on_the_device(*, compiled: bool) -> None:
    def make(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty_strided((3, 2), (4, 2))

    if compiled:
        make = torch.compile(make, backend="pjrt")
    found = make(torch.ones(2, 2, device="pjrt"))
    assert found.device.type == "pjrt"
    assert found.stride() == (4, 2)
    assert found.fill_(2.0).sum().item() == 12.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [0, 1, 1.5, -2.25])
def test_numbers_of_tensors(dtype: torch.dtype, value: float) -> None:
    there = torch.tensor(value).abs().to(dtype)
    here = there.to("pjrt")
    assert here.item() == there.item()
    assert type(here.item()) is type(there.item())
    assert here.expand(3)[1].item() == there.item()
    assert (here[None] == here)[0].item() is True


@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "addr", "stack"], ids=str)
def test_what_the_host_has_a_kernel_for_is_not_composed(name: str) -> None:
    """Torch composes these on other devices, of operators whose results may lie otherwise."""
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        "group_norm": lambda x: torch.nn.functional.group_norm(x[None], 2)[0],
        "addr": lambda x: torch.addr(x, x[:, 0], x[0]),
        "stack": lambda x: torch.stack([x, x + 1], 1),
    }
    there = torch.randn(6, 4).t()
    here = there.to("pjrt")
    for x in (there, here):
        x.requires_grad_()
    found, expected = (calls[name](x) for x in (here, there))
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found.cpu(), expected)
    for y in (found, expected):
        y.square().sum().backward()
    assert here.grad is not None
    assert there.grad is not None
    assert here.grad.stride() == there.grad.stride()
    torch.testing.assert_close(here.grad.cpu(), there.grad)
