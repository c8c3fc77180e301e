"""Calls of operators that have no program, because of what they write, and those that resize it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.ao.quantization import default_fused_per_channel_wt_fake_quant as fake_quantizer


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("mode", ["async", "fused"])
def test_an_operator_without_a_lowering_gives_what_it_writes_another_size(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", mode)
    there = fake_quantizer()
    here = copy.deepcopy(there).to("pjrt")
    assert there.activation_post_process.min_val.shape == (0,)
    for scale in (1.0, 2.0):
        x = torch.linspace(-1, 1, 12).reshape(3, 4) * scale
        torch.testing.assert_close(here(x.to("pjrt")).cpu(), there(x))
        for found, expected in zip(here.buffers(), there.buffers(), strict=True):
            torch.testing.assert_close(found.cpu(), expected)
    assert here.activation_post_process.min_val.shape == (3,)


RESIZING: dict[str, Callable[[torch.Tensor, Any], object]] = {
    "copied, of complex numbers": lambda x, out: torch.fft.fftn(x.permute(2, 0, 1), out=out),
    "copied, of real numbers": lambda x, out: torch.fft.fft(x, dim=0, out=out),
    "copied, of symmetric matrices": lambda x, out: torch.cholesky(
        x @ x.mT + torch.eye(4, device=x.device), out=out
    ),
    "as the results are laid out": lambda x, out: torch.linalg.solve(x @ x.mT, x, out=out),
    "as arguments are laid out": lambda x, out: torch.neg(x.permute(2, 0, 1), out=out),
}
"""Operators that write results of another size, by how PyTorch lays these out."""


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("size", [(0,), (5, 5)], ids=["empty", "of other sizes"])
@pytest.mark.parametrize("how", RESIZING)
def test_what_is_resized_has_the_strides_that_pytorch_gives_it(
    how: str, size: tuple[int, ...]
) -> None:
    x = torch.randn(3, 4, 4)
    dtype = torch.complex64 if "numbers" in how else torch.float32
    found, expected = (torch.empty(size, dtype=dtype, device=d) for d in ("pjrt", "cpu"))
    RESIZING[how](x.to("pjrt"), found)
    RESIZING[how](x, expected)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)


def test_of_several_results_those_that_fit_keep_their_strides() -> None:
    x = torch.rand(3, 4)
    strides = []
    for device in ("pjrt", "cpu"):
        values = torch.empty(4, 3, device=device).t()
        places = torch.empty(0, dtype=torch.int64, device=device)
        torch.sort(x.to(device), dim=1, out=(values, places))
        strides.append((values.stride(), places.stride()))
    assert strides[0] == strides[1]
