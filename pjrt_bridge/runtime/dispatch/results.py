"""Checks of what an execution gave, and ownership of its results.

As `pjrt_bridge.runtime.dispatch.arguments` checks before an execution, this does after it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from pjrt_bridge.abi.values import pointers
from pjrt_bridge.errors import PluginIncompatible
from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.device import Device
from pjrt_bridge.runtime.core.event import Event
from pjrt_bridge.runtime.core.layout import Layout
from pjrt_bridge.runtime.ownership.buffers import BufferHandle
from pjrt_bridge.runtime.ownership.handles import Handle
from pjrt_bridge.runtime.ownership.waiting import keep_event
from pjrt_bridge.stablehlo.types import Result, TensorType

# Layout, custom layout and dynamic, as `Buffer` has them.
_ResultLayout = tuple[Layout, tuple[int, ...] | None, bool]


class Outputs:
    """The outputs of one execution, and memory for the plugin to write them into.

    Args:
        client: of the executable.
        devices: how many the execution runs on.
        results: how many it gives on each device.
        watch: ask for the event of the end on each device.

    Attributes:
        rows: for each device an array of pointers to the results.
        buffers: for each device the owners of its results, as many as there are yet.
        ends: for each device the owner of the event of the end, where they were asked for.
        lists: `output_lists` of PJRT_LoadedExecutable_Execute.
        events: `device_complete_events` likewise, or None.
        made: the args struct of an execution that has not failed (see `Api.call_for`).
    """

    __slots__ = ("_client", "buffers", "ends", "events", "lists", "made", "rows")

    def __init__(self, client: ClientCore, devices: int, results: int, *, watch: bool) -> None:
        self._client = client.handle
        self.made: Any = None
        self.rows = [pointers([None] * results) for _ in range(devices)]
        self.lists: Any = pointers([ctypes.addressof(row) for row in self.rows])
        self.buffers: list[list[BufferHandle]] = [[] for _ in self.rows]
        self.events: Any = None
        self.ends: list[Handle] = []
        if watch:
            self.events = pointers([None] * devices)
            self.ends = [
                Handle(client.api, "Event", client.handle, made=self.events, out=index)
                for index in range(devices)
            ]

    def next_buffer(self, device: int) -> BufferHandle:
        """An owner of the next result on a device, which is to own it."""
        made = self.buffers[device]
        handle = BufferHandle(self._client, made=self.rows[device], out=len(made))
        # All results of one device come together, so one of them is enough to watch.
        handle.running = not made
        made.append(handle)
        return handle

    def give_back(self) -> None:
        """End what the plugin gave, after something went wrong."""
        # An execution that failed gave nothing.
        if self.made is not None:
            for device, row in enumerate(self.rows):
                while len(self.buffers[device]) < len(row):
                    self.next_buffer(device)
                for handle in self.buffers[device]:
                    handle.release()
            for end in self.ends:
                # The execution goes on.
                if not end.owned and end.find():
                    end.own()
                if end.owned and not end.released:
                    keep_event(end)
                end.release()


class Results:
    """The results of an executable, as buffers.

    Args:
        client: of the executable.
        name: of the executable, for messages.
        declared: results as the program has them.

    Attributes:
        types: shapes (per device) and types.
    """

    def __init__(
        self,
        client: ClientCore,
        name: str,
        declared: Sequence[Result],
        types: Sequence[TensorType],
    ) -> None:
        self._client = client
        self._name = name
        self._declared = declared
        self.types = types
        self._forms: tuple[_ResultLayout, ...] | None = None

    @property
    def layouts(self) -> list[Layout] | None:
        """Of the results, once there were some; None where one is not the plugin's default."""
        forms = self._forms
        if forms is None or any(order is not None or dynamic for _, order, dynamic in forms):
            return None
        return [layout for layout, _, _ in forms]

    @property
    def known(self) -> bool:
        """Whether there were results, so that it is known how they lie."""
        return self._forms is not None

    def take(
        self, outputs: Outputs, devices: Sequence[Device]
    ) -> tuple[tuple[tuple[Buffer, ...], ...], list[Event]]:
        """The results and the events of an execution that succeeded.

        Args:
            outputs: what the plugin gave.
            devices: where it ran.

        Raises:
            PluginIncompatible: a result or an event is missing.
            PjrtError: the plugin does not say how its results lie.
        """
        rows, ends = outputs.rows, outputs.events or ()
        if not (all(map(all, rows)) and all(ends)):
            raise PluginIncompatible(
                f"plugin {self._client.plugin.name!r}: LoadedExecutable_Execute of {self._name!r} "
                "succeeded without all results and events"
            )
        if self._forms is None:
            self._forms = tuple(map(self._form, rows[0], self._declared))
        for end in outputs.ends:
            end.own()
        buffers = tuple(
            [self._wrap(outputs, number, device) for number, device in enumerate(devices)]
        )
        return buffers, [Event(end) for end in outputs.ends]

    def _form(self, pointer: int | None, result: Result) -> _ResultLayout:
        """What all buffers of one result have in common; only the first one is asked."""
        client = self._client
        layout = Layout.of_buffer(client.api, pointer, result.type.rank, asked=result.layout)
        # Only the plugin knows the layout that mhlo.layout_mode = "auto" stands for.
        order = layout.minor_to_major if client.shares_host_memory else result.layout
        return layout, client.custom_layout(order), bool(result.dynamic)

    def _wrap(self, outputs: Outputs, number: int, device: Device) -> tuple[Buffer, ...]:
        assert self._forms is not None
        made = []
        for type, form in zip(self.types, self._forms, strict=True):
            handle = outputs.next_buffer(number)
            handle.own()
            made.append(Buffer(self._client, handle, type, device, *form))
        return tuple(made)
