"""What every test starts from: the defaults of users, and clients that tests share.

A test that closes a client makes its own.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pjrt_bridge.runtime import Client, Plugin, live_handles
from tests import configuration, extent
from tests.plugins import cpu_plugin

# The process that starts xdist's workers makes the folder, and they use it together.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _FOLDER = Path(tempfile.mkdtemp(prefix="pjrt_bridge-tests-"))
    atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
    # What starts programs is chosen for a whole run: see `require_dispatcher`.
    configuration.isolate(_FOLDER, keep=("PJRT_BRIDGE_DISPATCH",))
    if "TEST_PROGRAMS" in os.environ:
        configuration.keep_programs(_FOLDER, Path(os.environ["TEST_PROGRAMS"]))
    # Plugins that are given by their path are tried in the tests of that alone.
    os.environ["PJRT_BRIDGE_TRIAL"] = "off"

# Machines are shared: how long it takes to make or run an example says nothing of the code.
settings.register_profile(
    "shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared machine")

# Counts the modules of tests that have begun.
_MODULES = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Modules of tests ask for the extent when they are imported."""
    extent.decide(config)


def pytest_collectstart() -> None:
    """Imports make hundreds of thousands of objects, among which there is no garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What imports left is looked at no more: tests collect garbage often."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def garbage_of_this_module_alone() -> None:
    """Collections of garbage look at objects of earlier modules in every 32nd module only.

    After some thousands of tests there are millions, and each collection takes a second.
    """
    if next(_MODULES) % 32 == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


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


@pytest.fixture
def compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are compiled, also those that an earlier test has compiled."""
    monkeypatch.setenv(configuration.CACHE, "off")


@pytest.fixture
def xla_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program calls PyTorch's kernels."""
    monkeypatch.setenv(configuration.ATEN, "off")


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
