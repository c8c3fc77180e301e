"""Sequences of numbers written into `out=` tensors, which keep their shape where the count fits."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

from pjrt_bridge.errors import HostFallbackWarning
from tests.torch_interop.device.alike import assert_alike

WRITERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "arange": lambda out: torch.arange(6, out=out),
    "arange with a step": lambda out: torch.arange(1, 9.5, 1.5, out=out),
    "linspace": lambda out: torch.linspace(0, 3, 6, out=out),
    "logspace": lambda out: torch.logspace(0, 1, 6, base=2, out=out),
    "range": lambda out: torch.ops.aten.range(0, 5, out=out),
    "eye": lambda out: torch.eye(2, 3, out=out),
    "square eye": lambda out: torch.eye(2, out=out),
}

OUTS: dict[str, Callable[[str], torch.Tensor]] = {
    "other shape": lambda device: torch.zeros(2, 3, device=device),
    "by columns": lambda device: torch.zeros(3, 2, device=device).t(),
    "part": lambda device: torch.zeros(4, 6, device=device)[1:3, ::2],
    "other count": lambda device: torch.zeros(7, device=device),
    "empty": lambda device: torch.empty(0, device=device),
    "integers": lambda device: torch.zeros(2, 3, device=device, dtype=torch.int64),
}


@pytest.mark.parametrize("mode", ["async", "fused"])
@pytest.mark.parametrize("out", OUTS)
@pytest.mark.parametrize("name", WRITERS)
def test_results_are_written_where_they_are_on_the_host(
    monkeypatch: pytest.MonkeyPatch, name: str, out: str, mode: str
) -> None:
    monkeypatch.setenv("PJRT_BRIDGE_EAGER", mode)
    told = {}
    made = {}
    for device in ("cpu", "pjrt"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made[device] = OUTS[out](device)
            storage = made[device].untyped_storage().nbytes()
            found = WRITERS[name](made[device])
        assert found is made[device]
        told[device] = [
            item.category
            for item in caught
            if item.category is not HostFallbackWarning and "deprecated" not in str(item.message)
        ]
        assert found.untyped_storage().nbytes() >= storage
    assert told["pjrt"] == told["cpu"]
    if name == "logspace" and out != "integers":
        torch.testing.assert_close(made["pjrt"].cpu(), made["cpu"])
        assert made["pjrt"].stride() == made["cpu"].stride()
    else:
        assert_alike(made["pjrt"], made["cpu"])
