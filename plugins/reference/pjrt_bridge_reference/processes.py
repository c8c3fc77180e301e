"""The processes that a client spans: who is there, and what they tell each other.

Everything passes through the caller's key-value store. A process puts what it has to say and waits
for what the others say, for a limited time; whoever ends its client, or gives up on another
process, says so, and the others need not wait any longer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence

from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge_reference.caller_arguments import invalid
from pjrt_bridge_reference.store import Store
from pjrt_bridge_reference.worker import Worker

_LOOK_AROUND = 0.25
"""Seconds after which a process that waits looks whether the other one has left."""


class Processes:
    """The processes of a client, as one of them sees the others.

    Attributes:
        rank: number of this process.
        count: how many there are.
        timeout: seconds for which one waits for another.
        worker: does what needs other processes, in the order of the caller's calls.
    """

    def __init__(self, rank: int, count: int, store: Store | None, timeout: float) -> None:
        if not 0 <= rank < count:
            raise invalid(f"create_options: node_id is {rank}, expected 0 to {count - 1}")
        if timeout <= 0:
            raise invalid("create_options: process_timeout_ms must be positive")
        self.rank = rank
        self.count = count
        self.timeout = timeout
        self.worker = Worker(f"process {rank}")
        self._store = store
        self._closed = False
        self._failure: Status | None = None
        self._meetings: dict[tuple[int, ...], int] = {}
        self._lock = threading.Lock()

    @property
    def store(self) -> Store:
        """The store, which a client of one process does not have."""
        assert self._store is not None
        return self._store

    def device_counts(self, own: int) -> tuple[int, ...]:
        """The devices of each process, after all have said theirs.

        Args:
            own: devices of this process.

        Raises:
            Status: a process is missing or has left, or the store failed.
        """
        if self.count == 1:
            return (own,)
        try:
            said = json.dumps({"devices": own, "processes": self.count})
            self._put(f"topology/{self.rank}", said.encode())
            what = "the devices"
            end = time.monotonic() + self.timeout
            found = []
            for rank in range(self.count):
                each = json.loads(self._await(f"topology/{rank}", rank, what, end))
                if each["processes"] != self.count:
                    raise invalid(
                        f"process {rank} was told of {each['processes']} processes, process "
                        f"{self.rank} of {self.count} (num_nodes)"
                    )
                found.append(int(each["devices"]))
            # What a process said may be all that is left of it: it may have given up since.
            self._put(f"ready/{self.rank}", b"")
            for rank in range(self.count):
                self._await(f"ready/{rank}", rank, "an answer", end)
        except Status as failure:
            self.leave(failure.message)
            raise
        return tuple(found)

    def begin(self, members: tuple[int, ...]) -> int:
        """The number of a meeting of some processes, which count them alike.

        Raises:
            Status: the processes have lost each other before.
        """
        with self._lock:
            if self._failure is not None:
                raise Status(
                    ErrorCode.FAILED_PRECONDITION,
                    "the processes of this client have lost each other, make a new one in each: "
                    f"{self._failure.message}",
                )
            number = self._meetings.get(members, 0)
            self._meetings[members] = number + 1
            return number

    def exchange(
        self, members: tuple[int, ...], number: int, what: str, head: str, body: bytes
    ) -> tuple[list[str], list[bytes]]:
        """Tell the others of a meeting something, and wait for what they say.

        Args:
            members: the processes that meet, in order.
            number: of the meeting.
            what: for messages: what they meet for.
            head: a short text of this process; all are there before a body is read.
            body: bytes of this process; empty ones are not sent.

        Returns:
            Heads and bodies of all members, in their order.

        Raises:
            Status: a process did not come in time, has left, or the store failed; or before.
        """
        place = "-".join(map(str, members))
        try:
            # Whoever comes to meeting n + 2 has seen that all had come to n + 1, hence read all of
            # n. So two places are enough for the bodies; the store would grow otherwise.
            own = f"{place}/{number % 2}/{self.rank}"
            self._put(own, body)
            self._put(f"{place}/meeting {number}/{self.rank}", head.encode())
            end = time.monotonic() + self.timeout
            heads = [
                self._await(f"{place}/meeting {number}/{rank}", rank, what, end).decode()
                for rank in members
            ]
            bodies = [
                body
                if rank == self.rank
                else self._await(f"{place}/{number % 2}/{rank}", rank, what, end)
                for rank in members
            ]
        except Status as failure:
            self.lose(failure)
            raise
        return heads, bodies

    def lose(self, failure: Status) -> None:
        """Give up on the others, and tell them why."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = Status(failure.code, failure.message)
        self.leave(failure.message)

    def leave(self, reason: str) -> None:
        """Tell the others that this process will not answer any more."""
        if self.count > 1:
            try:
                self.store.put(f"left/{self.rank}", reason.encode())
            except Status:
                # They will find out when they have waited long enough.
                return

    def close(self) -> None:
        """Let nothing wait for other processes any more, and tell them so."""
        self._closed = True
        self.worker.close()
        if self._failure is None:
            self.leave(f"process {self.rank} has ended its client")

    def _put(self, key: str, value: bytes) -> None:
        try:
            self.store.put(key, value)
        except Status as error:
            raise self._of_store(error) from None

    def _await(self, key: str, rank: int, what: str, end: float) -> bytes:
        """What a process puts under a key, until a moment of the monotonic clock."""
        while True:
            # Who is late itself still sees what is there already.
            left = end - time.monotonic()
            try:
                found = self.store.get(key, min(max(left, 0.001), _LOOK_AROUND))
                reason = None
                if found is None:
                    reason = self.store.try_get(f"left/{rank}")
                    # It may have put its word just before it left.
                    found = None if reason is None else self.store.try_get(key)
            except Status as error:
                raise self._of_store(error) from None
            if found is not None:
                return found
            if reason is not None:
                raise Status(
                    ErrorCode.UNAVAILABLE,
                    f"process {self.rank} of {self.count} waits for {what} of process {rank}, "
                    f"which has left: {reason.decode(errors='replace')}",
                )
            if self._closed:
                raise Status(ErrorCode.CANCELLED, "the client was destroyed")
            if left <= 0:
                raise Status(
                    ErrorCode.DEADLINE_EXCEEDED,
                    f"process {self.rank} of {self.count} waited for {what} of process {rank}: "
                    f"found nothing within {self.timeout:g} s (process_timeout_ms); it is missing, "
                    "late, or has ended",
                )

    def _of_store(self, error: Status) -> Status:
        return Status(
            error.code,
            f"process {self.rank} of {self.count}: the key-value store failed: {error.message}",
        )


def owners(counts: Sequence[int]) -> tuple[int, ...]:
    """For each device the process that it belongs to, given how many each has."""
    return tuple(rank for rank, count in enumerate(counts) for _ in range(count))
