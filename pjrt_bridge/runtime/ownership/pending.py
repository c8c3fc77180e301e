"""Work that plugins have not ended yet, with what has to live until they do.

Two things end up here. Host memory that a plugin reads in place is lent with the buffer over it,
and the plugin says some time after the buffer's end that it has done with it. An execution whose
results were dropped before it ended goes on, and the process must not end before it does.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from pjrt_bridge.abi.api import Api
from pjrt_bridge.errors import PjrtError

if TYPE_CHECKING:
    from pjrt_bridge.runtime.ownership.handles import Handle


class Pending:
    """Memory, and the event that says when a plugin is done with it.

    Args:
        done: the event, with a pin that this object takes over.
        memory: any object that owns the memory; None where only the end of the work matters.
    """

    __slots__ = ("_done", "_memory")

    def __init__(self, done: Handle, memory: object) -> None:
        self._done = done
        self._memory = memory

    def over(self) -> bool:
        """Whether the plugin is done, or cannot be asked: its threads stayed behind in a fork."""
        api = self._done.api
        return not api.usable or is_ready(api, self._done.pointer)

    def end(self) -> None:
        """Let go of the event; the memory goes with this object."""
        self._done.unpin()


queue: deque[Pending] = deque()
"""What is not known to be over, oldest first."""


lost: list[object] = []
"""Memory under buffers that their plugins refused to destroy: they may read it for good."""


def destroy(api: Api, event: int) -> None:
    """End an event that is not needed any more; nobody could do anything about a refusal."""
    with suppress(PjrtError):
        api.call("Event_Destroy", event=event)


def give_up(api: Api, event: int | None, memory: object) -> None:
    """Keep the memory under a buffer that its plugin refuses to destroy for good.

    Its event would never come, but programs that are under way may still read there.
    """
    if memory is not None:
        lost.append(memory)
    if event:
        destroy(api, event)


def is_ready(api: Api, event: int) -> bool:
    """Whether an event was signalled, or the plugin cannot tell."""
    try:
        return bool(api.call("Event_IsReady", event=event).is_ready)
    except PjrtError:
        return True


def settle(*, patient: bool) -> None:
    """End what is over.

    Args:
        patient: ask for everything in the queue; else stop at the first that is not over, so that
            a long queue costs each operation no more than one question.
    """
    for _ in range(len(queue)):
        item = queue.popleft()
        if item.over():
            item.end()
            continue
        queue.append(item)
        if not patient:
            return
