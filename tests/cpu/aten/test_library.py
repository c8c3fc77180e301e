"""Custom calls of the plugin's package: registered with a client once, not for each program."""

from __future__ import annotations

import gc
import weakref

import pytest

from pjrt_bridge.extensions import FFI
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge_cpu.aten import library
from pjrt_bridge_cpu.windows import TARGET


def test_calls_are_registered_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Client(client.plugin)
    assert kernels_of(own).can_write
    registered: list[str] = []
    monkeypatch.setattr(FFI, "register", lambda self, target, handler: registered.append(target))
    assert kernels_of(own).can_write
    assert library.can_call(own, TARGET, "WRITE_WINDOWS")
    assert not registered
    other = Client(client.plugin)
    assert kernels_of(other).can_write
    assert TARGET in registered


def test_what_was_registered_does_not_keep_a_client(client: Client) -> None:
    own = Client(client.plugin)
    assert kernels_of(own).can_write
    gone = weakref.ref(own)
    del own
    gc.collect()
    assert gone() is None
