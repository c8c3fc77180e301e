"""Fourier transforms of padded dimensions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.passes.padding.rows import SIZE, assert_padding_changes_nothing

N = SIZE
torch.manual_seed(0)
X = torch.randn(N, 4)

TRANSFORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "complex": lambda x: (torch.fft.fft(x, dim=0), torch.fft.ifft(x, dim=0, norm="forward")),
    "orthonormal": lambda x: (torch.fft.fft(x, dim=0, norm="ortho"), torch.fft.ifft(x, dim=0)),
    "of real numbers": lambda x: (torch.fft.rfft(x.t()), torch.fft.rfft(x, dim=0).abs()),
    "to real numbers": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=0) * 1j, x.shape[0], 0),
    "to an odd size": lambda x: torch.fft.irfft(torch.fft.fft(x, dim=0), 2 * x.shape[0] - 1, 0),
    "several dimensions": lambda x: (
        torch.fft.fft2(x).abs().cumsum(1).contiguous(),
        torch.fft.rfft2(x.t()).abs().sum(0),
        torch.fft.irfft2(torch.fft.rfft2(x.t()), s=(4, x.shape[0])).sum(1),
        torch.fft.irfft2(torch.fft.rfft2(x), s=(x.shape[0], 4)).sum(1),
    ),
    "shifted": lambda x: torch.fft.fftshift(torch.fft.fft(x, dim=0), dim=0),
    "padded by the user": lambda x: (torch.fft.rfft(x, 2 * x.shape[0], 0) * 2).abs(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_padding_changes_nothing(name: str, dtype: torch.dtype) -> None:
    assert_padding_changes_nothing(TRANSFORMS[name], X.to(dtype))


@pytest.mark.usefixtures("fresh")
def test_convolutions_by_transforms_of_any_length_share_programs() -> None:
    def function(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        n = x.shape[-1]
        product = torch.fft.rfft(x, n=2 * n) * torch.fft.rfft(kernel[:n], n=2 * n)
        return torch.fft.irfft(product, n=2 * n)[..., :n]

    run = torch.compile(function, backend="pjrt")
    kernel = torch.randn(200)
    for length in (30, 31, 100, 97, 1, 64, 128, 127, 99, 2, 3):
        gradients = []
        for one in (run, function):
            x = torch.linspace(-1, 1, 2 * length).view(2, length).requires_grad_()
            made = one(x, kernel)
            made.square().sum().backward()
            gradients.append([made.detach(), x.grad])
        assert_same(*gradients, rtol=1e-3, atol=1e-4)
    assert len(compiled_graphs()) <= 16
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())
