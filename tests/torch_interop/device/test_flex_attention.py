"""Attention with functions of the user, on resident tensors and with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

pytestmark = pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile:UserWarning"
)


def attention(x: torch.Tensor, slopes: torch.Tensor, *, masked: bool) -> torch.Tensor:
    """What the function computes, of operators that the host has gradients of."""
    scores = x @ x.mT / x.shape[-1] ** 0.5
    place = torch.arange(x.shape[-2], device=x.device)
    away = place[:, None] - place
    scores = scores + away * slopes[:, None, None]
    if masked:
        scores = scores.masked_fill(away < 0, -torch.inf)
    return scores.softmax(-1) @ x


def flexible(x: torch.Tensor, slopes: torch.Tensor, *, masked: bool) -> torch.Tensor:
    """The same through the function."""

    def distance(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return score + (query - key) * slopes[head]

    mask = None
    if masked:
        mask = create_block_mask(
            lambda batch, head, query, key: query >= key, None, None, 16, 16, device=x.device.type
        )
    return flex_attention(x, x, x, score_mod=distance, block_mask=mask)  # type: ignore[return-value]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("mode", ["async", "fused", "compiled"])
def test_results_and_gradients(mode: str, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    on_device: Any = flexible
    if mode == "compiled":
        on_device = torch.compile(flexible, backend="pjrt", fullgraph=True)
    else:
        monkeypatch.setenv("PJRT_BRIDGE_EAGER", mode)
    x, slopes = torch.randn(2, 2, 16, 8), torch.tensor([0.1, -0.2])
    results = []
    for run, device in ((attention, "cpu"), (on_device, "pjrt")):
        given = [item.clone().to(device).requires_grad_() for item in (x, slopes)]
        found = run(*given, masked=masked)
        results.append([found, *torch.autograd.grad(found.square().sum(), given)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_compiled_without_gradients() -> None:
    x, slopes = torch.randn(2, 2, 16, 8), torch.tensor([0.1, -0.2])
    function = torch.compile(flexible, backend="pjrt", fullgraph=True)
    here = x.to("pjrt"), slopes.to("pjrt")
    found = function(*here, masked=True)
    torch.testing.assert_close(found.cpu(), attention(x, slopes, masked=True))


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_casts_its_tensors(compiled: bool) -> None:
    function = torch.compile(flexible, backend="pjrt", fullgraph=True) if compiled else flexible
    x, slopes = torch.randn(2, 2, 16, 8), torch.tensor([0.1, -0.2])
    here = x.to("pjrt").requires_grad_()
    with torch.autocast("pjrt", dtype=torch.bfloat16):
        found = function(here, slopes.to("pjrt"), masked=True)
    assert found.dtype is torch.bfloat16
    expected = attention(x.requires_grad_(), slopes, masked=True)
    torch.testing.assert_close(found.float().cpu(), expected, rtol=0.02, atol=0.02)
    (gradient,) = torch.autograd.grad(found.float().sum(), here)
    (wanted,) = torch.autograd.grad(expected.sum(), x)
    torch.testing.assert_close(gradient.cpu(), wanted, rtol=0.05, atol=0.05)
