"""FastPath: calls of one program that go like the call before, straight into the dispatcher.

Of a graph that is one program, takes the user's tensors as they come, and gives new ones or writes
into those that it takes, nothing in the framework's wrapper and in the bridge's own bookkeeping
changes what a call gives. After a call
that went well on the usual path the next ones go past both. Whatever is not as it was takes the
usual path again: a parameter in other memory, a value that has to be rearranged, an observer, a
failure.
"""

from __future__ import annotations

from pjrt_bridge.mixed.execution import CallRecord
from pjrt_bridge.mixed.launchers import DispatchLauncher


class FastPath:
    """The fast path of one program; the framework's own class says how calls enter it.

    Args:
        launcher: of the program.
        result_bytes: of all its results.

    Attributes:
        taken: the last call came this way.
    """

    def __init__(self, launcher: DispatchLauncher, result_bytes: int) -> None:
        self._launcher = launcher
        self._result_bytes = result_bytes
        self.taken = False

    def went_well(self, call: CallRecord) -> None:
        """A call on the usual path went well: the next one may come this way."""
        self.taken = False

    def close(self) -> None:
        """The next call takes the usual path."""

    def last(self) -> CallRecord | None:
        """The last call, if it came this way."""
        if not self.taken:
            return None
        call = CallRecord(1)
        shared, copied = self._launcher.plan.crossed
        call.crossed(
            0, shared + self._launcher.pinned.added_bytes + self._result_bytes, shared=True
        )
        call.crossed(0, copied, shared=False)
        return call
