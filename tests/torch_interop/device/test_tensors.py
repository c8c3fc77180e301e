"""Tensors on the device are torch's own: sizes, strides, views, what is written through them."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import pjrt_bridge
from pjrt_bridge.errors import DeviceError
from tests.torch_interop.device.alike import assert_alike, values

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


@pytest.mark.parametrize(
    "make",
    [torch.zeros, torch.ones, torch.rand, partial(torch.full, fill_value=2)],
    ids=["zeros", "ones", "rand", "full"],
)
def test_tensors_of_the_device_are_not_pinned(make: Any) -> None:
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        make((2, 3), device="pjrt", pin_memory=True)
    assert make((2, 3), device="pjrt", pin_memory=False).shape == (2, 3)


def test_what_draws_nothing_refuses_what_pytorch_refuses() -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        torch.randint(300, (0,), dtype=torch.uint8, device="pjrt")
    with pytest.raises(RuntimeError, match="check_random_bounds"):
        torch.randint(6, (0,), dtype=torch.complex64, device="pjrt")
    assert torch.randint(6, (0,), device="pjrt").shape == (0,)


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


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (3, torch.float64),
        (1e-300, torch.float64),
        (float("nan"), torch.bfloat16),
        (2.7, torch.int32),
        (2**40 + 1, torch.int64),
        (True, torch.complex64),
        (1 + 2j, torch.complex128),
    ],
)
def test_copies_of_numbers(number: Any, dtype: torch.dtype) -> None:
    def written(device: str) -> torch.Tensor:
        into = torch.zeros(4, dtype=dtype, device=device)
        into[1:3].copy_(number)
        return into

    assert_alike(written("pjrt"), written("cpu"))


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
    assert here.index_fill(0, torch.tensor([2]), 5.0).tolist() == [1, 1, 5]
    assert here.index_fill_(0, torch.tensor([], dtype=torch.int64), 5.0).tolist() == [1, 1, 1]
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


def test_errors_of_data_are_caught_as_those_of_the_host() -> None:
    # Of so many elements, the computation ends after the call.
    many = 100_000

    def divided(device: str) -> torch.Tensor:
        ones = torch.ones(many, dtype=torch.int32, device=device)
        return (ones // torch.zeros_like(ones)).cpu()

    def drawn(device: str) -> torch.Tensor:
        return torch.bernoulli(torch.full((many,), 2.0, device=device)).cpu()

    def scattered(device: str) -> torch.Tensor:
        zeros = torch.zeros(many, device=device)
        return zeros.masked_scatter_(zeros == 0, torch.ones(3, device=device)).cpu()

    def lost(device: str) -> torch.Tensor:
        inputs = torch.full((many,), 2.0, device=device)
        return torch.nn.functional.binary_cross_entropy(inputs, torch.ones_like(inputs)).cpu()

    def found(device: str) -> torch.Tensor:
        return torch.ones(many, device=device)[torch.full((many,), many, device=device)].cpu()

    for call, kind in (
        (divided, RuntimeError),
        (drawn, RuntimeError),
        (scattered, RuntimeError),
        (lost, RuntimeError),
        (found, IndexError),
    ):
        for device in ("cpu", "pjrt"):
            with pytest.raises(kind):
                call(device)


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


@pytest.mark.parametrize("mode", ["sync", "async", "fused"])
def test_a_mask_of_bytes_is_deprecated_in_each_call(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", mode)
    there, mask = values((5, 7)), torch.tensor([1, 0, 1, 1, 0], dtype=torch.uint8)
    here, mask_here = there.to("pjrt"), mask.to("pjrt")
    for _ in range(4):
        for x, of in ((there, mask), (here, mask_here)):
            with pytest.warns(UserWarning, match="uint8 is now deprecated") as caught:
                x.index_put_((of,), x[of] + 1)
            assert [item.filename for item in caught] == [__file__] * 2
    assert_alike(here, there)


def test_strides_of_tensors_without_elements() -> None:
    shape = (0, 3, 0, 2)
    for make in (
        lambda device: torch.empty(shape, device=device),
        lambda device: torch.zeros(shape, device=device),
        lambda device: torch.randn(shape, device=device),
        lambda device: torch.empty(shape, device=device).transpose(0, 1).contiguous(),
        lambda device: torch.empty(shape, device=device).transpose(0, 1).clone(),
        lambda device: torch.empty(4, device=device).resize_(shape),
    ):
        assert_alike(make("pjrt"), make("cpu"))


@pytest.mark.parametrize("take", [torch.from_dlpack, np.from_dlpack], ids=["torch", "numpy"])
def test_dlpack_is_refused_with_advice(take: Callable[[Any], Any]) -> None:
    here = torch.ones(2, 3, device="pjrt")
    with pytest.raises(BufferError, match=r"\(2, 3\) on device pjrt:0.*\.cpu\(\).*buffer_of"):
        take(here)
    assert take(here.cpu()).sum() == 6


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("device", ["pjrt", "cpu"], ids=["of the device", "of the host"])
def test_nested_tensors_of_layout_strided_are_refused(device: str) -> None:
    """Also where autograd asks for their sizes."""
    parts = [torch.ones(2, device=device, requires_grad=True), torch.ones(3, device=device)]
    with pytest.raises(DeviceError, match="no nested tensors"):
        torch.nested.as_nested_tensor(parts, device="pjrt").sum()
