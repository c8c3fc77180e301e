"""Operators that autograd calls on a device: their gradients are the host's, without a fallback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from pjrt_bridge.errors import HostFallbackWarning

RESIZED: dict[str, tuple[int, dict[str, Any]]] = {
    "nearest, twice": (2, {"scale_factor": 2}),
    "nearest, a fraction": (2, {"scale_factor": 1.7}),
    "nearest, a scale that is computed anew": (
        1,
        {"scale_factor": 1.7, "recompute_scale_factor": True},
    ),
    "nearest, smaller": (3, {"size": (2, 3, 4)}),
    "nearest exact": (2, {"size": (7, 9), "mode": "nearest-exact"}),
    "nearest exact, one dimension": (1, {"scale_factor": 0.6, "mode": "nearest-exact"}),
    "linear": (1, {"scale_factor": 2.5, "mode": "linear"}),
    "bilinear": (2, {"scale_factor": 2, "mode": "bilinear"}),
    "bilinear with corners": (2, {"size": (3, 9), "mode": "bilinear", "align_corners": True}),
    "bilinear to one": (2, {"size": (1, 1), "mode": "bilinear", "align_corners": True}),
    "trilinear": (3, {"scale_factor": 1.5, "mode": "trilinear"}),
    "bicubic": (2, {"size": (9, 4), "mode": "bicubic"}),
    "bicubic with corners": (2, {"scale_factor": 1.5, "mode": "bicubic", "align_corners": True}),
}


def _alike(run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, **limits: Any) -> None:
    """Results and gradients on the device are those of the host; a fallback would warn."""
    found = []
    for device in ("cpu", "pjrt"):
        given = x.to(device).detach().requires_grad_()
        result = run(given)
        (
            result * torch.linspace(0, 1, result.numel()).reshape(result.shape).to(given)
        ).sum().backward()
        assert given.grad is not None
        found.append((result.detach().cpu(), given.grad.cpu(), given.grad.stride()))
    torch.testing.assert_close(found[1][0], found[0][0], **limits)
    torch.testing.assert_close(found[1][1], found[0][1], **limits)
    assert found[1][2] == found[0][2]


@pytest.mark.parametrize("name", RESIZED)
def test_resizing(name: str) -> None:
    rank, options = RESIZED[name]
    x = torch.randn(2, 3, *(5, 6, 4)[:rank], generator=torch.Generator().manual_seed(1))
    _alike(lambda x: functional.interpolate(x, **options), x, rtol=1e-4, atol=1e-5)


def test_resizing_keeps_the_order_of_channels() -> None:
    x = torch.randn(2, 3, 5, 6).to(memory_format=torch.channels_last)
    for mode in ("nearest", "bilinear"):
        _alike(lambda x, m=mode: functional.interpolate(x, scale_factor=2, mode=m), x)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
def test_resized_rows_are_contiguous_whatever_lies_within(mode: str) -> None:
    x = torch.randn(6, 3, 2).transpose(0, 2)
    expected = functional.interpolate(x, scale_factor=2, mode=mode)
    found = functional.interpolate(x.to("pjrt"), scale_factor=2, mode=mode)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_resizing_of_types_without_a_kernel_is_refused(mode: str) -> None:
    x = torch.ones(1, 1, 4, 4, dtype=torch.int32, device="pjrt")
    with pytest.warns(HostFallbackWarning), pytest.raises(NotImplementedError, match="'Int'"):
        functional.interpolate(x, size=(6, 6), mode=mode)


def test_resizing_in_half_precision() -> None:
    x = torch.randn(1, 2, 4, 4).bfloat16()
    _alike(
        lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
        x,
        rtol=2e-2,
        atol=2e-2,
    )


@pytest.mark.parametrize("run", [functional.hardshrink, functional.softshrink])
def test_shrinking(run: Callable[[torch.Tensor], torch.Tensor]) -> None:
    _alike(run, torch.tensor([-2.0, -0.5, -0.1, 0.0, 0.5, 3.0, torch.nan]), equal_nan=True)


def test_random_complex_numbers() -> None:
    # A fallback would warn. Both parts have half of the variance.
    for dtype in (torch.complex64, torch.complex128):
        normal = torch.empty(4000, dtype=dtype, device="pjrt").normal_(3.0, 2.0)
        for part in (normal.real, normal.imag):
            assert part.mean().item() == pytest.approx(3, abs=0.2)
            assert part.var().item() == pytest.approx(2, rel=0.2)
        uniform = torch.view_as_real(torch.rand(4000, dtype=dtype, device="pjrt"))
        assert uniform.mean(0).tolist() == pytest.approx([0.5, 0.5], abs=0.05)
        assert 0 <= uniform.min().item() < uniform.max().item() < 1
    torch.manual_seed(0)
    first = torch.randn(3, dtype=torch.complex64, device="pjrt").tolist()
    torch.manual_seed(0)
    assert torch.randn(3, dtype=torch.complex64, device="pjrt").tolist() == first


def test_running_extremes_and_sums_of_exponentials() -> None:
    x = torch.randn(3, 4)
    for dim in (0, 1):
        _alike(lambda x, d=dim: x.cummax(d).values, x)
        _alike(lambda x, d=dim: x.cummin(d).values, x)
        _alike(lambda x, d=dim: x.logcumsumexp(d), x)
        assert torch.equal(x.to("pjrt").cummax(dim).indices.cpu(), x.cummax(dim).indices)


def test_a_view_without_elements_is_resized_by_what_is_written_into_it() -> None:
    for count in (6, 7):
        assert torch.equal(torch.fft.fftfreq(count, device="pjrt").cpu(), torch.fft.fftfreq(count))
    x = torch.zeros(5, device="pjrt")
    torch.add(x[:2], 1, out=x[3:3])
    assert x.tolist() == [0, 0, 0, 1, 1]
