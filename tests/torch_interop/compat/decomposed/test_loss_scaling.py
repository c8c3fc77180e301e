"""GradScaler on the device: the scale, and the steps that are left out, as on the host."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("pjrt_device")


def scales(device: str, bad: set[int]) -> tuple[list[float], torch.Tensor]:
    """The scale after each of six steps, and the weight; gradients of some steps are infinite."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 4, bias=False).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)  # type: ignore[attr-defined]
    found = []
    for step in range(6):
        optimizer.zero_grad()
        loss = layer(torch.full((2, 4), float("inf") if step in bad else 1.0).to(device))
        scaler.scale(loss.square().mean()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        found.append(scaler.get_scale())
    return found, layer.weight.detach().cpu()


@pytest.mark.parametrize("bad", [set(), {3}, {0, 1}], ids=str)
def test_as_on_the_host(bad: set[int]) -> None:
    with warnings.catch_warnings():
        # Nothing of it may run on the host.
        warnings.simplefilter("error")
        found, weight = scales("pjrt", bad)
    expected, at_home = scales("cpu", bad)
    assert found == expected
    torch.testing.assert_close(weight, at_home)
