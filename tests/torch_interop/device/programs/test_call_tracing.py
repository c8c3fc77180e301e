"""Calls of operators that have no program, because of what they write."""

from __future__ import annotations

import copy

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
