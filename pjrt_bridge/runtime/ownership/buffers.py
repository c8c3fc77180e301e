"""Ownership of plugins' buffers: with the memory and the work that outlast them."""

from __future__ import annotations

from typing import Any

from pjrt_bridge.errors import PjrtError, PluginIncompatible
from pjrt_bridge.runtime.ownership import pending
from pjrt_bridge.runtime.ownership.handles import Handle
from pjrt_bridge.runtime.ownership.leases import offer_lease
from pjrt_bridge.runtime.ownership.waiting import Completion, await_event, discard, keep_until


class BufferHandle(Handle):
    """A PJRT_Buffer that the bridge owns, or is about to own.

    Attributes:
        running: the execution or copy that it comes from may still be under way.
        memory: any object that owns host memory, which is kept until the plugin is done with it.
        done: the event that says so, some time after the buffer's end; None where the call that
            makes the buffer gives none.
    """

    __slots__ = ("client", "done", "memory", "running")

    def __init__(self, client: Handle, *, made: Any = None, out: str | int | None = None) -> None:
        super().__init__(client.api, "Buffer", client, made=made, out=out)
        self.client = client
        self.running = False
        self.memory: object = None
        self.done: Completion | None = None

    def find(self) -> bool:
        """Look where the plugin writes the pointer; whether there is one."""
        if self.done is not None and self.made is not None and not self.pointer:
            self.done.event = self.made.done_with_host_buffer or 0
        return super().find()

    @property
    def is_viewed(self) -> bool:
        """Whether there are views of the buffer's memory (`pins.Pin`)."""
        return bool(self._holders)

    def dispatched(self) -> object:
        """What the dispatcher in C takes in place of the buffer; it refuses one without a lease."""
        if self.lease is None:
            offer_lease(self)
        return self

    def await_address(self) -> int | None:
        """Device address of the first element, once it is there.

        None where that has to be asked in steps, which also say why there is none. The caller pins
        the buffer.
        """
        return None

    def wait_for(self, function: str, memory: object = None, **values: Any) -> None:
        """Call a function that gives an event of this buffer, and wait for it.

        Where the plugin cannot wait, or something interrupts it, `memory` is kept until the plugin
        is done with it nevertheless. The caller pins the buffer.

        Args:
            function: as for `Api.call`; its args struct has a field `event`.
            memory: any object that owns memory that the plugin uses.
            **values: as for `Api.call`.

        Raises:
            PjrtError: the operation failed.
            PluginIncompatible: there is no event, but a NULL, so its end is not known.
        """
        done = Completion()
        try:
            event = self.api.call_for(done, function, **values).event
            if not event:
                raise PluginIncompatible(
                    f"plugin {self.api.plugin!r} returned no Event, but a NULL"
                )
            await_event(self.api, event)
            discard(done, self.api)
        finally:
            keep_until(done, self.client, memory)

    def watch(self) -> None:
        """See to it that the execution that ends with this buffer is waited for at exit."""
        done = Completion()
        try:
            self.api.call_for(done, "Buffer_ReadyEvent", buffer=self.pointer)
        except PjrtError:
            # What failed has ended.
            self.running = False
        finally:
            keep_until(done, self.client)
        self.running = False

    def _destroy(self) -> None:
        if self.running:
            self.watch()
        super()._destroy()
        done = self.done
        if self.refused:
            # The event would never come, but programs that are under way may still read there.
            if self.memory is not None:
                pending.lost.append(self.memory)
            if done is not None:
                discard(done, self.api)
        elif done is not None:
            keep_until(done, self.client, self.memory)
        self.memory = self.done = None
