"""Views on the device: sizes, strides, shared memory, what is written through them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge.errors import DeviceError
from tests.extent import examples
from tests.torch_interop.device.alike import assert_alike

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


def test_a_result_whose_strides_need_more_memory_than_its_elements() -> None:
    # PyTorch gives a part of a column-major array.
    a, b = torch.randn(5, 3), torch.randn(5, 2)
    found = torch.linalg.lstsq(a.to("pjrt"), b.to("pjrt"))
    expected = torch.linalg.lstsq(a, b)
    assert found.solution.stride() == expected.solution.stride() == (1, 5)
    torch.testing.assert_close(found.solution.cpu(), expected.solution)
    torch.testing.assert_close(found.residuals.cpu(), expected.residuals)


def test_a_result_is_resized() -> None:
    x = torch.arange(4.0).to("pjrt")
    out = torch.empty(0, device="pjrt")
    assert torch.mul(x, 2, out=out) is out
    assert out.tolist() == [0, 2, 4, 6]
    x.resize_(2, 3)
    assert x.flatten()[:4].tolist() == [0, 1, 2, 3]
    assert x.resize_(2).tolist() == [0, 1]


RESIZING: dict[str, Any] = {
    "sum": lambda x, out: torch.add(x, x[:1], out=out),
    "of two orders": lambda x, out: torch.mul(x, x.contiguous(), out=out),
    "of windows": lambda x, out: torch.add(x.flatten().unfold(0, 3, 2), 1, out=out),
    "unary": lambda x, out: torch.exp(x, out=out),
    "product": lambda x, out: torch.mm(x, x.t(), out=out),
    "reduction": lambda x, out: torch.sum(x.unsqueeze(-1).expand(3, 4, 2), 0, out=out),
    "choice": lambda x, out: torch.where(x > 0, x, -x, out=out),
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "gather": lambda x, out: torch.index_select(
        x, 1, torch.tensor([0, 1], device=x.device), out=out
    ),
    "running sum": lambda x, out: torch.cumsum(x, 0, out=out),
    "PyTorch's": lambda x, out: torch.linalg.ldl_factor_ex(
        x @ x.t(), out=(out, *(torch.empty(0, dtype=torch.int32, device=x.device) for _ in "pi"))
    ),
}


@pytest.mark.parametrize("name", RESIZING)
@pytest.mark.parametrize("size", [(0,), (2, 5), (7, 5)])
@pytest.mark.parametrize("first", [0, 1])
def test_a_result_of_another_size_is_laid_out_as_on_the_host(
    name: str, size: tuple[int, ...], first: int
) -> None:
    found = []
    for device in ("cpu", "pjrt"):
        x = torch.arange(-6.0, 6.0).reshape(4, 3).to(device).t()
        base = torch.zeros(size, device=device)
        out = base[first:] if size == (7, 5) else base
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            RESIZING[name](x, out)
        found.append((out, base, any("An output with one" in str(item.message) for item in heard)))
    (there, all_there, warned_there), (here, all_here, warned_here) = found
    assert warned_here == warned_there
    torch.testing.assert_close(here.cpu(), there)
    torch.testing.assert_close(all_here.cpu(), all_there)
    assert here.stride() == there.stride()
    assert here.storage_offset() == there.storage_offset()


def test_the_most_frequent_values_are_written_where_they_are_wanted() -> None:
    x = torch.tensor([[2.0, 1.0, 2.0], [0.0, 3.0, 3.0]])
    out = torch.empty(0, device="pjrt"), torch.empty(0, dtype=torch.int64, device="pjrt")
    torch.mode(x.to("pjrt"), 1, out=out)
    for here, there in zip(out, torch.mode(x, 1), strict=True):
        assert torch.equal(here.cpu(), there)


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


def test_tensors_become_empty_behind_the_end_of_their_storage() -> None:
    for device in ("cpu", "pjrt"):
        storage = torch.empty(0, device=device).untyped_storage()
        x = torch.empty(0, device=device).set_(storage, 2, (0, 3))
        other = x[:0]
        assert x.resize_(0).shape == (0,)
        assert (x.storage_offset(), storage.nbytes(), other.shape) == (2, 0, (0, 3))


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
    assert int(here.view(torch.bool).sum()) == int(there.view(torch.bool).sum())
    assert torch.equal(here.cpu(), there)
    here.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    assert torch.equal(here.cpu(), there.abs())
    joined = [torch.cat([x.view(torch.int32), x]) for x in (here, there.abs())]
    assert_alike(*joined)
    z = torch.randn(3, dtype=torch.complex64)
    assert_alike(torch.view_as_real(z.to("pjrt")), torch.view_as_real(z))
    assert torch.equal(z.to("pjrt").conj().cpu(), z.conj().resolve_conj())
    assert torch.equal((z.to("pjrt").conj() * 2).cpu(), z.conj() * 2)
    assert torch.equal(z.to("pjrt").conj().imag.cpu(), z.conj().imag)


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


OVERLAPPING: dict[str, Callable[[torch.Tensor], Any]] = {
    "in place": lambda x: x[1:].add_(x[:-1]),
    "of a list": lambda x: torch._foreach_add_([x[1:]], [x[:-1]]),
    "out": lambda x: torch.add(x[:-1], 1, out=x[1:]),
    "copied": lambda x: x[1:].copy_(x[:-1]),
    "transposed": lambda x: x.view(3, 3).add_(x.view(3, 3).t()),
    "joined": lambda x: torch.cat([x[:2], x[2:4]], out=x[1:5]),
    "running sum": lambda x: torch.cumsum(x[:4], 0, out=x[1:5]),
    "scattered": lambda x: x.scatter_(0, x.long(), x),
    "rows": lambda x: x.index_copy_(0, x[:2].long(), x[:2]),
}
WITHIN: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda x: x.mul_(x),
    "an equal view": lambda x: x[1:].add_(x[1:]),
    "apart": lambda x: x[5:].add_(x[:4]),
    "running sum": lambda x: x.cumsum_(0),
    "copied onto itself": lambda x: x[1:].copy_(x[1:]),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_what_is_read_and_partly_written_is_refused_as_on_the_host(name: str) -> None:
    for device in ("cpu", "pjrt"):
        x = torch.arange(9.0, device=device)
        for _ in range(3):
            with pytest.raises(RuntimeError, match=r"(?s)unsupported operation: .*clone\(\)"):
                OVERLAPPING[name](x)
        assert x.tolist() == list(range(9))


@pytest.mark.parametrize("name", WITHIN)
def test_what_is_read_and_wholly_written_is_taken(name: str) -> None:
    here, there = torch.arange(9.0, device="pjrt"), torch.arange(9.0)
    WITHIN[name](here)
    WITHIN[name](there)
    assert here.tolist() == there.tolist()


@pytest.mark.parametrize("order", [None, torch.contiguous_format, torch.channels_last])
def test_a_tensor_resized_to_its_own_size_is_laid_out_anew(order: Any) -> None:
    given = {} if order is None else {"memory_format": order}
    for start in (torch.contiguous_format, torch.channels_last):
        there = torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=start)
        here = there.to("pjrt")
        for x in (there, here):
            x.resize_(1, 2, 3, 4, **given)
        assert here.stride() == there.stride()
        assert here.tolist() == there.tolist()


def test_resizing_needs_an_order() -> None:
    for device in ("cpu", "pjrt"):
        with pytest.raises(RuntimeError, match=r"(?i)preserve"):
            torch.ones(2, device=device).resize_(2, memory_format=torch.preserve_format)


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
    joined = torch.cat([bits, x.to(torch.int16), x])
    assert joined.tolist() == torch.cat([bits.cpu(), x.cpu().to(torch.int16), x.cpu()]).tolist()


def _in_parts(x: torch.Tensor) -> None:
    y = x.view(torch.int32)
    torch.frexp(x[:2], out=(x[2:4], y[6:]))


WRITTEN_AS_TWO_TYPES: dict[str, Callable[[torch.Tensor], Any]] = {
    "onto itself": lambda x: torch.add(x.view(torch.int32), 1.0, out=x),
    "beside": lambda x: torch.add(x.view(torch.int32)[4:], 1.0, out=x[:4]),
    "wider": lambda x: torch.add(x.view(torch.int64)[2:], 1.0, out=x[1:3]),
    "narrower": lambda x: x[4:].add_(x.view(torch.uint8)[:4]),
    "two results": _in_parts,
    "in place": lambda x: x.view(torch.int32).add_(x.view(torch.int32)).bitwise_and_(x > 0),
    "copied": lambda x: x.copy_(x.view(torch.int32)),
    "complex": lambda x: torch.add(x[4:8:2], 1j, out=x.view(torch.complex64)[:2]),
    "mask": lambda x: torch.gt(x[:4], 2, out=x.view(torch.bool)[16:20]),
    "bytes are left over": lambda x: torch.add(x[:6].view(torch.int64)[2:], 1.0, out=x[:1]),
}


@pytest.mark.parametrize("name", WRITTEN_AS_TWO_TYPES)
@pytest.mark.parametrize("count", [8, 9])
def test_one_storage_is_read_as_one_type_and_written_as_another(name: str, count: int) -> None:
    here, there = torch.arange(float(count), device="pjrt"), torch.arange(float(count))
    if count % 2:
        here, there = here[: count - 1], there[: count - 1]
    for _ in range(3):
        WRITTEN_AS_TWO_TYPES[name](here)
        WRITTEN_AS_TWO_TYPES[name](there)
    assert here.view(torch.int32).tolist() == there.view(torch.int32).tolist()


def test_what_is_partly_written_as_another_type_is_refused() -> None:
    """Also after equal calls of tensors that share no memory."""
    for device in ("cpu", "pjrt"):
        x, y = torch.arange(8.0, device=device), torch.zeros(8, dtype=torch.int32, device=device)
        x[:4].add_(y[2:6])
        torch.add(y[2:6], 1.0, out=x[:4])
        before = x.tolist()
        for other in (x.view(torch.int32)[2:6], x.view(torch.int16)[:4]):
            with pytest.raises(RuntimeError, match="unsupported operation"):
                x[:4].add_(other)
            with pytest.raises(RuntimeError, match="unsupported operation"):
                torch.add(other, 1.0, out=x[:4])
        assert x.tolist() == before


def test_tensors_that_are_set_to_the_same_memory() -> None:
    x = torch.arange(6.0, device="pjrt")
    y = torch.empty(0, device="pjrt").set_(x)
    assert y.is_set_to(x)
    assert x[2:].is_set_to(y[2:])
    assert not any(other.is_set_to(x) for other in (x[1:], x.view(2, 3), x.clone()))


def test_slices_of_storages_are_refused() -> None:
    storage = torch.arange(4.0).to("pjrt").untyped_storage()
    with pytest.raises(DeviceError, match="or a slice of one"):
        torch.empty(0, device="pjrt").set_(storage[4:8]).sum()


def test_positions_that_are_transposed_are_read_in_their_order() -> None:
    classes = torch.tensor([[1, 2, 0], [0, 3, 1]])
    expected = torch.nn.functional.one_hot(classes.t(), 4)
    found = torch.nn.functional.one_hot(classes.to("pjrt").t(), 4)
    assert torch.equal(found.cpu(), expected)
    places = classes.as_strided((3, 2, 1), (1, 3, 1))
    resident = classes.to("pjrt").as_strided((3, 2, 1), (1, 3, 1))
    source, base = torch.arange(6).reshape(3, 2, 1), torch.zeros(3, 2, 4, dtype=torch.int64)
    found = base.to("pjrt").scatter_add(-1, resident, source.to("pjrt"))
    assert torch.equal(found.cpu(), base.scatter_add(-1, places, source))
