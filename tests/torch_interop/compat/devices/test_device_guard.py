"""What torch's C++ asks of the device goes to functions of Python, or stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop.compat.devices import device_guard
from pjrt_bridge.torch_interop.device.accelerator import streams
from pjrt_bridge.torch_interop.named_device import naming


@pytest.fixture(autouse=True)
def in_use(pjrt_device: None) -> None:
    """Torch (2.11) waits for no device of which it has made no tensor."""
    torch.ones(1, device="pjrt")


def test_functions_of_python_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(streams, "wait_for_all", lambda: called.append("wait"))
    event: Any = torch.Event("pjrt")
    event.record()
    torch.accelerator.synchronize()
    event.synchronize()
    torch.accelerator.current_stream().synchronize()
    assert called == ["wait"] * 3


def test_an_error_of_what_is_waited_for_does_not_reach_cpp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []

    def fail() -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(streams, "wait_for_all", fail)
    monkeypatch.setattr(streams._logger, "warning", lambda text, *args: told.append(text % args))
    torch.accelerator.synchronize()
    assert told == ["what was waited for failed: no room"]


def test_other_tables_are_left_alone() -> None:
    hooks = naming._DeviceHooks()
    assert not device_guard.answer_for(hooks, "pjrt", int, int, int)
    assert device_guard.answer_for(naming.Guard(), "pjrt", int, int, int) is False
    assert torch.Stream("pjrt").query()
