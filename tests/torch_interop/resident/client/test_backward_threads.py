"""Backward passes on every device: torch makes a thread for each when the first one runs."""

from __future__ import annotations

import pytest

from tests import forked

SOURCE = """
import warnings
import torch
from pjrt_bridge.errors import BridgeWarning
from pjrt_bridge.torch_interop.device import use

def train(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
"""

EVERY = """
use("cpu", cpu_device_count=3)
assert train("pjrt:2") == train("pjrt:0")
x = torch.ones(3, device="pjrt:0", requires_grad=True)
((x.to("pjrt:1") * 2).to("pjrt:2") * 3).sum().to("pjrt:0").backward()
assert x.grad.device == x.device
assert x.grad.tolist() == [6, 6, 6]
"""

LATE = """
torch.ones((), requires_grad=True).sin().backward()
use("cpu", cpu_device_count=2)
train("pjrt:0")
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    with torch.inference_mode():
        x = torch.ones(3, device="pjrt:1")
    assert (x + 1).tolist() == [2, 2, 2]
(warning,) = found
assert warning.category is BridgeWarning
assert "made no thread for 'pjrt:1'" in str(warning.message)
assert "call pjrt_bridge.torch_interop.device.use(...)" in str(warning.message)
"""


@pytest.mark.parametrize("case", [EVERY, LATE], ids=["every device", "late"])
def test_threads(case: str) -> None:
    done = forked.parent(forked.TORCH).run(SOURCE + case, [], timeout=240)
    assert done.returncode == 0, done.stderr
