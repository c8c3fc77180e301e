"""A plugin behind a faulty table, with clients: what an operation runs in."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from pjrt_bridge import registry
from pjrt_bridge.abi.functions import SLOT
from pjrt_bridge.abi.implementation_objects import Keep
from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.runtime import Client, Executable, Plugin, live_handles
from tests import programs
from tests.faults.faulty import Faulty
from tests.plugins import cpu_plugin
from tests.runtime.arrays import aligned

_keep = Keep()

_COUNTS = {"cpu": "cpu_device_count", "reference": "device_count"}
"""Create options for the number of devices, by plugin; others have the devices of the machine."""

_beneath = "cpu"


class AbsentDevice(Exception):
    """The plugin has fewer devices than an operation needs."""


def use(plugin: str) -> None:
    """Let the worlds of this process be over another plugin than `cpu`."""
    global _beneath
    _beneath = plugin


def beneath() -> str:
    """Name of the plugin that worlds are over."""
    return _beneath


def _real() -> Plugin:
    if _beneath == "cpu":
        return cpu_plugin()
    info = registry.select(_beneath)
    assert info.spec is not None
    return registry.load(info.spec)


def _attributes(args: Any) -> None:
    args.attributes, args.num_attributes = _keep.named_values({"temperature": 21})


def _memory_kinds(args: Any) -> None:
    args.num_parameters = 2
    args.memory_kinds, args.memory_kind_sizes = _keep.texts(["device", "device"])


_KINDS: dict[str, dict[str, Any]] = {
    "sharing": {},
    # Buffers that nobody may look into: values cross by copies alone.
    "copying": {"without": ["Buffer_OpaqueDeviceMemoryDataPointer"]},
    "newer": {
        "version": (0, 114),
        "slots": len(SLOT),
        "unknown_extensions": 3,
        "functions": {
            "Device_GetAttributes": _attributes,
            "Executable_ParameterMemoryKinds": _memory_kinds,
        },
    },
}


class World:
    """A plugin of its own, over the library of the real one.

    Args:
        kind: `"sharing"` has everything, `"copying"` does not let its memory be read, `"newer"`
            speaks a later version.
        without: functions whose slots are NULL.
        slots: functions that the table has, where it is cut.
    """

    def __init__(
        self, kind: str = "sharing", *, without: Sequence[str] = (), slots: int | None = None
    ) -> None:
        options = dict(_KINDS[kind])
        options["without"] = [*options.get("without", ()), *without]
        if slots is not None:
            options["slots"] = slots
        # What earlier tests have dropped must not end while this one counts.
        gc.collect()
        self._before = live_handles()
        self.table = Faulty(_real().api.address, **options)

    @cached_property
    def plugin(self) -> Plugin:
        """The plugin over the table."""
        return Plugin.from_address(self.table.address, name="faulty", keepalive=self.table)

    def options(self, devices: int) -> dict[str, NamedValue]:
        """Create options of a client with so many devices.

        Raises:
            AbsentDevice: the plugin has not so many on this machine.
        """
        count = _COUNTS.get(_beneath)
        if count is not None:
            return {count: devices}
        info = registry.select(_beneath)
        if devices > 1:
            raise AbsentDevice(f"plugin {_beneath!r} has one device here, {devices} are needed")
        return dict(info.spec.options) if info.spec else {}

    @cached_property
    def client(self) -> Client:
        """One device."""
        return self.plugin.client(self.options(1))

    @cached_property
    def pair(self) -> Client:
        """Two devices."""
        return self.plugin.client(self.options(2))

    @cached_property
    def add(self) -> Executable:
        """Adds two arrays of 64 numbers."""
        return self.client.compile(programs.ADD)

    @cached_property
    def array(self) -> np.ndarray[Any, Any]:
        """64 numbers that a plugin can use in place."""
        return aligned(np.arange(64, dtype=np.float32))

    @property
    def lost(self) -> bool:
        """Whether the devices of the pair may wait for each other for good."""
        pair: Client | None = self.__dict__.get("pair")
        return pair is not None and pair.lost is not None

    def alive(self) -> tuple[dict[str, int], Counter[str]]:
        """Plugin objects by the bridge's count and by the table's, once all work has ended."""
        gc.collect()
        return live_handles(), self.table.ledger.alive()

    def rest(self) -> None:
        """Wait, some seconds at most, until no work is under way."""
        deadline = time.monotonic() + 2
        while "Event" in self.alive()[0] and time.monotonic() < deadline:
            time.sleep(0.005)

    def settled(self, expected: tuple[dict[str, int], Counter[str]] | None = None) -> str | None:
        """What is alive beside what is expected, after some seconds of patience.

        Without an expectation: no more than when this world was made. There may be less, because
        torch drops what earlier tests have compiled when it is reset.
        """
        wanted = (self._before, Counter()) if expected is None else expected
        deadline = time.monotonic() + 2
        while True:
            found = self.alive()
            if found == wanted or (expected is None and _within(found, wanted)):
                return None
            if time.monotonic() > deadline:
                return f"alive: {found}, expected {wanted}"
            time.sleep(0.005)

    def close(self) -> None:
        """End the clients."""
        for name in ("client", "pair"):
            if (client := self.__dict__.get(name)) is not None:
                client.close()
        for name in ("add", "client", "pair", "plugin"):
            self.__dict__.pop(name, None)


def _within(
    found: tuple[dict[str, int], Counter[str]], most: tuple[dict[str, int], Counter[str]]
) -> bool:
    handles, objects = found
    return not objects and all(count <= most[0].get(kind, 0) for kind, count in handles.items())
