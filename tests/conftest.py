"""Clients that tests share; a test that closes a client makes its own."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from pjrt_bridge.runtime import Client, Plugin, live_handles
from tests.plugins import cpu_plugin

# What one test compiled, another must not find; tests of the cache turn it on for themselves.
os.environ["PJRT_BRIDGE_CACHE"] = "off"
# Nor may what was measured on a machine decide what runs where.
os.environ["PJRT_BRIDGE_CALIBRATION"] = "off"
# Nor which kernels are called; tests of these decide that themselves.
os.environ["PJRT_BRIDGE_ATEN"] = "off"

# Machines are shared: how long an example takes says nothing of the code.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


def pytest_collectstart() -> None:
    """Imports make hundreds of thousands of objects, among which there is no garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What imports left is looked at no more: tests collect garbage often."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def plugin() -> Plugin:
    return cpu_plugin()


@pytest.fixture(scope="session")
def client(plugin: Plugin) -> Client:
    """One device."""
    return plugin.client({"cpu_device_count": 1})


@pytest.fixture(scope="session")
def pair(plugin: Plugin) -> Client:
    """Two devices."""
    return plugin.client({"cpu_device_count": 2})


class Census:
    """The plugin objects that were alive at one moment."""

    def __init__(self) -> None:
        # What tests before this one left running ends first.
        self.before = _alive_when(lambda alive: "Event" not in alive, seconds=1)

    @property
    def more(self) -> Counter[str]:
        """What is alive beyond that."""
        return Counter(live_handles()) - self.before

    def check(self) -> None:
        """Assert that no more are alive; executions get some seconds to end."""
        now = _alive_when(lambda alive: not alive - self.before, seconds=10)
        assert not now - self.before, f"{now}, before the test {self.before}"


def _alive_when(settled: Callable[[Counter[str]], bool], seconds: float) -> Counter[str]:
    """How many objects of each kind are alive as soon as they are settled, or when time is up."""
    deadline = time.monotonic() + seconds
    while True:
        # Garbage would go at any time.
        gc.collect()
        alive = Counter(live_handles())
        if settled(alive) or time.monotonic() > deadline:
            return alive
        time.sleep(0.01)


@pytest.fixture
def no_leaks(client: Client, pair: Client) -> Iterator[Census]:
    """Asserts that the test leaves no plugin object behind."""
    census = Census()
    yield census
    census.check()
