"""Work that plugins have not ended yet, with what has to live until they do.

Two kinds are kept here. Host memory that a plugin reads in place is lent with the buffer over it,
and the plugin says some time after the buffer's end that it has done with it. An execution whose
results were dropped before it ended goes on, and the process must not end before it does.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Work(Protocol):
    """Something that a plugin does; of Python's or of the dispatcher's making."""

    def over(self) -> bool:
        """Whether the plugin is done, or cannot be asked: its threads stayed behind in a fork."""

    def end(self) -> None:
        """Let go of what is over; later calls do nothing."""


queue: deque[Work] = deque()
"""What is not known to be over, oldest first. Only `end_finished` takes something out."""


lost: list[object] = []
"""Memory under buffers that their plugins refused to destroy: they may read it at any time."""


def end_finished(*, patient: bool) -> None:
    """End what is over.

    One thread at a time may do this; others may append to the queue meanwhile. An item stays in the
    queue until it has ended. So an exception that comes at any moment, such as KeyboardInterrupt,
    leaves it there, and what has ended is over when it is asked again.

    Args:
        patient: ask for everything in the queue; else stop at the first that is not over, so that
            a long queue costs each operation no more than one question.
    """
    for _ in range(len(queue)):
        item = queue[0]
        if item.over():
            item.end()
            queue.popleft()
            continue
        # The item is in the queue at every moment, as `rotate` is one step.
        queue.rotate(-1)
        if not patient:
            return
