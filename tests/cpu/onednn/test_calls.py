from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.registry import load
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge_cpu import kernels, pjrt_bridge_kernels
from pjrt_bridge_cpu.kernels import CpuKernels, XlaKernels
from pjrt_bridge_cpu.onednn.kinds import kinds

TOLERANCE = {torch.bfloat16: (1e-2, 1e-2), torch.float32: (2e-5, 2e-5)}

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "pays", lambda library, kind, size: kind in kinds())


def compare(function: Callable[..., Any], *arguments: torch.Tensor, train: bool = False) -> None:
    """The compiled function gives what eager gives, and the same gradients."""
    options = {"fallback": "error"}
    compiled = torch.compile(function, backend="pjrt", options=options, dynamic=False)
    own = [a.clone(memory_format=torch.preserve_format) for a in arguments]
    if train:
        for argument in (*arguments, *own):
            argument.requires_grad_()
    expected, found = function(*arguments), compiled(*own)
    relative, absolute = TOLERANCE[expected.dtype]
    scale = expected.detach().nan_to_num().abs().max().item() if expected.numel() else 0.0
    close = dict(rtol=relative, atol=absolute * max(scale, 1.0), equal_nan=True)
    torch.testing.assert_close(found, expected, **close)
    if train:
        parameters = function.parameters() if isinstance(function, torch.nn.Module) else ()
        weights = [*arguments, *parameters]
        again = [*own, *(function.parameters() if isinstance(function, torch.nn.Module) else ())]
        seed = torch.randn_like(expected)
        eager = torch.autograd.grad(expected, weights, seed)
        device = torch.autograd.grad(found, again, seed)
        for one, other in zip(device, eager, strict=True):
            scale = max(other.abs().max().item(), 1.0)
            torch.testing.assert_close(one, other, rtol=relative, atol=absolute * scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_forward_and_backward(written: Counter[str], dtype: torch.dtype, bias: bool) -> None:
    layer = torch.nn.Linear(70, 33, bias=bias).to(dtype)
    compare(layer, torch.randn(3, 19, 70).to(dtype), train=True)
    assert written["matmul"] == (6 if dtype == torch.bfloat16 else 0)


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_batches_with_sides_in_any_order(written: Counter[str], turned: tuple[bool, bool]) -> None:
    x, y = torch.randn(5, 33, 70).bfloat16(), torch.randn(5, 70, 17).bfloat16()
    if turned[0]:
        x = x.mT.contiguous().mT
    if turned[1]:
        y = y.mT.contiguous().mT
    compare(torch.bmm, x, y)
    assert written["matmul"]


def test_strided_arguments_of_products(written: Counter[str]) -> None:
    x, y = torch.randn(64, 80).bfloat16(), torch.randn(80, 120).bfloat16()
    compare(torch.mm, x[::2, 3:43], y[40:, 1::3])
    assert written["matmul"]


@pytest.mark.parametrize(
    "shape", [(0, 32, 32), (32, 0, 32), (32, 32, 0), (1, 64, 64), (15, 64, 64)]
)
def test_empty_and_narrow_products_are_xlas(
    written: Counter[str], shape: tuple[int, int, int]
) -> None:
    m, k, n = shape
    compare(torch.mm, torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16())
    assert not written


CONVOLUTIONS = {
    "1d": (torch.nn.Conv1d(6, 10, 3, padding=1), (2, 6, 17)),
    "2d": (torch.nn.Conv2d(6, 10, 3, padding=1), (2, 6, 9, 11)),
    "3d": (torch.nn.Conv3d(3, 4, 2), (2, 3, 5, 6, 7)),
    "strided": (torch.nn.Conv2d(6, 10, 3, stride=2, padding=1, bias=False), (2, 6, 10, 11)),
    "pointwise strided": (torch.nn.Conv2d(6, 10, 1, stride=2), (2, 6, 10, 11)),
    "dilated": (torch.nn.Conv2d(6, 10, (3, 2), dilation=(2, 3), padding=(2, 1)), (2, 6, 9, 11)),
    "grouped": (torch.nn.Conv2d(8, 12, 3, groups=4, bias=False), (2, 8, 9, 9)),
    "large": (torch.nn.Conv2d(3, 8, 7, stride=2, padding=3), (1, 3, 32, 30)),
    "transposed": (torch.nn.ConvTranspose2d(6, 4, 3, padding=1), (2, 6, 9, 9)),
}


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *((case, torch.bfloat16) for case in CONVOLUTIONS),
        *((case, torch.float32) for case in ("2d", "3d", "strided", "grouped", "transposed")),
    ],
)
def test_convolutions_forward_and_backward(
    written: Counter[str], case: str, dtype: torch.dtype
) -> None:
    layer, shape = CONVOLUTIONS[case]
    compare(layer.to(dtype), torch.randn(shape).to(dtype), train=True)
    assert written["convolution"]


def test_depthwise_convolutions_are_sums(written: Counter[str]) -> None:
    layer = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8).bfloat16()
    compare(layer, torch.randn(2, 8, 9, 9).bfloat16(), train=True)
    assert not written


def test_channels_last_and_empty_batches(written: Counter[str]) -> None:
    layer = torch.nn.Conv2d(6, 10, 3).bfloat16()
    with torch.no_grad():
        x = torch.randn(2, 6, 9, 9).bfloat16().to(memory_format=torch.channels_last)
        compare(layer, x)
        assert written["convolution"]
        written.clear()
        compare(layer, torch.randn(0, 6, 9, 9).bfloat16())
        assert not written


def test_other_types_are_xlas(written: Counter[str]) -> None:
    x = torch.randn(33, 33)
    for dtype in (torch.float16, torch.float64):
        wide = x.to(dtype)
        compiled = torch.compile(torch.mm, backend="pjrt", options={"fallback": "error"})
        torch.testing.assert_close(compiled(wide, wide), wide @ wide, rtol=1e-2, atol=1e-2)
    assert not written


def test_it_can_be_ruled_out(written: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_ONEDNN", "off")
    compare(torch.mm, torch.randn(33, 33).bfloat16(), torch.randn(33, 33).bfloat16())
    assert not written
    assert type(pjrt_bridge_kernels(load("cpu"))) is XlaKernels


def test_other_plugins_get_no_calls() -> None:
    assert pjrt_bridge_kernels(load("reference")) is None
    assert type(pjrt_bridge_kernels(load("cpu"))) is CpuKernels


def test_programs_with_calls_are_compiled_every_time(tmp_path: Any) -> None:
    x = torch.randn(64, 64).bfloat16()
    compiled = torch.compile(torch.mm, backend="pjrt", options={"fallback": "error"})
    compiled(x, x)
    (graph,) = compiled_graphs()
    assert graph.compile_seconds > 0
    assert not list((tmp_path / "executables").glob("*"))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(torch.nn.Linear(64, 64), (64, 64)), (torch.nn.Conv2d(16, 16, 3), (2, 16, 9, 9))],
)
def test_a_weight_that_is_updated_in_place_is_read_again(
    written: Counter[str], layer: torch.nn.Module, shape: tuple[int, ...]
) -> None:
    layer.bfloat16()
    x = torch.randn(shape).bfloat16()
    compiled = torch.compile(layer, backend="pjrt", options={"fallback": "error"})
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), layer(x), rtol=1e-2, atol=2e-2)
            layer.weight.mul_(-2)
    assert written
