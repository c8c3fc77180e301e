"""Executor: one execution of a loaded program, from checked buffers to buffers of the results."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from typing import Any

from pjrt_bridge import timeline
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import int64s, pointers
from pjrt_bridge.errors import Closed, PjrtBridgeError, PjrtError
from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.core.device import Device
from pjrt_bridge.runtime.core.event import Event
from pjrt_bridge.runtime.dispatch.arguments import Arguments
from pjrt_bridge.runtime.dispatch.direct import DirectCalls, End, LaunchEnd, direct_calls
from pjrt_bridge.runtime.dispatch.plans import PlannedExecutable
from pjrt_bridge.runtime.dispatch.results import Outputs, Results
from pjrt_bridge.runtime.ownership.handles import Handle, pin_all, unpin_all


class Executor:
    """Starts executions of one loaded program.

    Args:
        target: the program.
        arguments: checks what executions are given.
        results: checks what they give.
        devices: of all processes that one execution uses.
        portable: each execution may choose its device.

    Attributes:
        target: the program.
    """

    def __init__(
        self,
        target: PlannedExecutable,
        arguments: Arguments,
        results: Results,
        *,
        devices: int,
        portable: bool,
    ) -> None:
        self.target = target
        self._client = target.client
        self._loaded = target.loaded
        self._arguments = arguments
        self._results = results
        self._count = len(target.outputs)
        self._devices = devices
        self._portable = portable
        self._direct: DirectCalls | None = None
        self._prepared = False

    def call(self, arrays: Sequence[Any]) -> tuple[Buffer, ...] | None:
        """Start an execution on arrays and buffers, as many as there are parameters.

        Returns:
            The results; None where one of them has to be put first, or where nothing is known yet
            of how the results lie.

        Raises:
            PjrtBridgeError: as `Executable.execute`.
        """
        direct = self._find_direct()
        if direct is None:
            return None
        self._client.check_alive()
        return direct.on_arrays(arrays)

    def _find_direct(self) -> DirectCalls | None:
        """What starts executions without the steps in Python, if anything does."""
        if not self._prepared and self._results.known:
            if self._devices == 1 and not self._arguments.donors:
                layouts = self._results.layouts
                self._direct = direct_calls(self.target, self._arguments, layouts)
            self._prepared = True
        return self._direct if timeline.current is None else None

    def start(
        self, buffers: Sequence[Buffer], device: Device, donate: Collection[int] | None
    ) -> tuple[tuple[Buffer, ...], End]:
        """Start an execution on one device; see `execute`.

        Returns:
            The results, and the end.

        Raises:
            PjrtBridgeError: as `Executable.execute`.
        """
        # The dispatcher knows the end of a launch by the addresses of its results, which plugins
        # with memory of their own need not tell.
        if self._client.shares_host_memory:
            found = self._start_directly(buffers, device, donate)
            if found is not None:
                return found
        (results,), (event,) = self.execute([buffers], (device,), donate, watch=True)
        return results, event

    def _start_directly(
        self, buffers: Sequence[Buffer], device: Device, donate: Collection[int] | None
    ) -> tuple[tuple[Buffer, ...], LaunchEnd] | None:
        direct = self._find_direct()
        if direct is None:
            return None
        self._client.check_alive()
        self._arguments.check(buffers, device)
        # The program donates nothing, so this only refuses what it cannot donate.
        self._arguments.donation([buffers], donate)
        return direct.on_buffers(buffers)

    def execute(
        self,
        lists: Sequence[Sequence[Buffer]],
        devices: Sequence[Device],
        donate: Collection[int] | None,
        *,
        watch: bool = False,
    ) -> tuple[tuple[tuple[Buffer, ...], ...], list[Event]]:
        """Check the arguments and start an execution.

        Args:
            lists: for each device its arguments.
            devices: that it runs on.
            donate: indices of arguments that it may consume; None: all that the program donates.
            watch: give the events of its end; those of a program without results always are.

        Returns:
            For each device the results there, and the events.

        Raises:
            PjrtBridgeError: as `Executable.execute`.
        """
        watch = watch or not self._count
        found = None if watch else self._start_directly(lists[0], devices[0], donate)
        if found is not None:
            return (found[0],), []
        if timeline.current is None:
            return self._launch(lists, devices, donate, watch=watch)
        with timeline.span(f"launch {self._arguments.name}", devices=len(devices)):
            return self._launch(lists, devices, donate, watch=watch)

    def _launch(
        self,
        lists: Sequence[Sequence[Buffer]],
        devices: Sequence[Device],
        donate: Collection[int] | None,
        *,
        watch: bool,
    ) -> tuple[tuple[tuple[Buffer, ...], ...], list[Event]]:
        demands = self._arguments
        self._client.check_alive()
        for buffers, device in zip(lists, devices, strict=True):
            demands.check(buffers, device)
        donated, kept = demands.donation(lists, donate)
        handles: list[Handle] = [buffer.handle for buffers in lists for buffer in buffers]
        handles.append(self._loaded)
        if gone := pin_all(handles):
            raise self._unavailable(gone, lists)
        try:
            columns = [pointers([buffer.handle.pointer for buffer in row]) for row in lists]
            arguments = pointers([ctypes.addressof(column) for column in columns])
            options = self._options_keeping(kept) if kept else self.target.options
            made = Outputs(self._client, len(lists), self._count, watch=watch)
            try:
                try:
                    self._client.api.call_for(
                        made,
                        "LoadedExecutable_Execute",
                        executable=self._loaded.pointer,
                        options=ctypes.addressof(options),
                        argument_lists=ctypes.addressof(arguments),
                        num_devices=len(lists),
                        num_args=len(demands.types),
                        output_lists=ctypes.addressof(made.lists),
                        device_complete_events=made.events and ctypes.addressof(made.events),
                        execute_device=devices[0].pointer if self._portable else None,
                    )
                except PjrtError as error:
                    if self._devices > 1:
                        self._client.lose(demands.name, self._devices, error)
                    raise
                finally:
                    # One that failed may have taken them nevertheless.
                    for index in donated:
                        self._mark_donated([buffers[index] for buffers in lists])
                outputs, events = self._results.take(made, devices)
                if not self._count:
                    for event in events:
                        event.outlive()
                return outputs, events
            except BaseException:
                made.give_back()
                raise
        finally:
            unpin_all(handles)

    def _unavailable(self, gone: Handle, lists: Sequence[Sequence[Buffer]]) -> PjrtBridgeError:
        for buffers in lists:
            for buffer in buffers:
                if buffer.handle is gone:
                    return buffer.unavailable()
        return closed(self._arguments.name)

    def _options_keeping(self, kept: Sequence[int]) -> Any:
        indices = int64s(kept)
        options = STRUCTS["PJRT_ExecuteOptions"].new(
            non_donatable_input_indices=ctypes.addressof(indices),
            num_non_donatable_input_indices=len(kept),
        )
        options._indices = indices
        return options

    def _mark_donated(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            try:
                found = self._client.api.call("Buffer_IsDeleted", buffer=buffer.handle.pointer)
                taken = bool(found.is_deleted)
            except PjrtError:
                # Its memory may have other values by now.
                taken = True
            if taken:
                buffer.mark_donated(f"executable {self._arguments.name!r}")


def closed(name: str) -> Closed:
    """The error for a use of an executable that was closed."""
    return Closed(f"executable {name!r} was closed")
