"""Clients of the reference plugin; each test leaves as many objects as it found."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from pjrt_bridge import registry
from pjrt_bridge.runtime import Client, Plugin, live_handles
from pjrt_bridge_reference import pjrt_bridge_plugins
from pjrt_bridge_reference.slots import ERRORS, OBJECTS


@pytest.fixture(scope="session")
def plugin() -> Plugin:
    return registry.load(pjrt_bridge_plugins())


@pytest.fixture(scope="session")
def client(plugin: Plugin) -> Client:
    """One device with memory of its own."""
    return plugin.client({"device_count": 1})


@pytest.fixture(scope="session")
def pair(plugin: Plugin) -> Client:
    """Two devices with memory of their own."""
    return plugin.client({"device_count": 2})


@pytest.fixture(scope="session")
def host_client(plugin: Plugin) -> Client:
    """One device whose memory is host memory."""
    return plugin.client({"host_memory": True})


@pytest.fixture
def slow(plugin: Plugin) -> Iterator[Client]:
    """A client whose executions take a tenth of a second."""
    with Client(plugin, {"latency_ms": 100, "device_count": 2}) as client:
        yield client


@pytest.fixture(autouse=True)
def _nothing_stays(client: Client, pair: Client, host_client: Client) -> Iterator[None]:
    before = OBJECTS.count(), ERRORS.count()
    yield
    deadline = time.monotonic() + 5
    # Works off what finalizers left behind.
    live_handles()
    while (now := (OBJECTS.count(), ERRORS.count())) != before and time.monotonic() < deadline:
        gc.collect()
        live_handles()
        time.sleep(0.01)
    assert now == before
