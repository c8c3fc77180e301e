"""Graphs whose host tensors are taken for those of an accelerator that shares its memory.

The CPU plugin makes buffers over them as the plugin of a GPU does over torch's tensors there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from pjrt_bridge import registry
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop.compiling import target


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """The client of the CPU plugin, which says that its memory is DLPack's device type 1."""
    found = registry.client("cpu")
    spec = replace(found.platform_spec, dlpack_device_type=1)
    monkeypatch.setattr(found, "platform_spec", spec)
    monkeypatch.setattr(target, "kind_shared_with", lambda _: "cpu")
    torch.compiler.reset()
    yield found
    torch.compiler.reset()
