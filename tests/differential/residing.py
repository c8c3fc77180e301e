"""Programs on torch's device `pjrt`: what they are given, and what they make, is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

from pjrt_bridge.torch_interop.device import use
from pjrt_bridge.torch_interop.device.programs import programs
from pjrt_bridge.torch_interop.resident.client import chosen
from tests.plugins import of_device

_kept = ""
"""How the programs of operators run that are kept for further programs of the fuzzer."""


def forget() -> None:
    """Drop the programs of operators: what they were made by is about to change."""
    global _kept
    programs.forget()
    _kept = ""


@contextmanager
def on_device(eager: str) -> Iterator[None]:
    """Have tensors be made on the device.

    Args:
        eager: a value of PJRT_BRIDGE_EAGER.
    """
    global _kept
    use(of_device())
    if eager != _kept:
        # A program of an operator keeps the way in which it was made to run.
        forget()
        _kept = eager
    with mock.patch.dict(os.environ, {chosen.EAGER_VARIABLE: eager}), torch.device("pjrt"):
        yield
    chosen._client = None
    chosen.chosen.cache_clear()
