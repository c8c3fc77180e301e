"""Programs whose devices belong to several processes.

The interpreter runs all devices of a program in one process. So each process gives the others the
arguments of its devices, runs the whole program, and keeps what its own devices would have got:
more work than a real plugin does, and exactly the same numbers in every process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge_reference.buffer import Array
from pjrt_bridge_reference.caller_arguments import invalid
from pjrt_bridge_reference.loaded import LoadedExecutable


class Meeting:
    """One execution of a program, as one of the processes that run it takes part.

    Made on the thread that calls the plugin: the order of these calls is what the processes have
    in common.

    Raises:
        Status: FAILED_PRECONDITION; the processes have lost each other before.
    """

    def __init__(self, loaded: LoadedExecutable) -> None:
        self._loaded = loaded
        self._processes = loaded.client.processes
        self._number = self._processes.begin(loaded.members)

    def submit(self, job: Callable[[], None]) -> None:
        """Do something after everything that this process has to do with others before."""
        self._processes.worker.submit(job)

    def gather(self, own: Sequence[Sequence[Array]], failure: Status | None) -> list[list[Array]]:
        """The arguments of all devices of the program, in the order of its devices.

        Args:
            own: arguments of the devices of this process.
            failure: why there are none.

        Raises:
            Status: the arguments of a process failed, it runs another program, it did not come in
                time or has left, or the store failed.
        """
        loaded = self._loaded
        name = loaded.executable.program.name
        what = f"the arguments of execution {self._number} of {name!r}"
        head = {
            "program": name,
            "fingerprint": loaded.agreement,
            "failure": None if failure is None else failure.message,
        }
        body = b"" if failure else b"".join(_bytes(array) for row in own for array in row)
        heads, bodies = self._processes.exchange(
            loaded.members, self._number, what, json.dumps(head), body
        )
        for rank, text in zip(loaded.members, heads, strict=True):
            self._check(rank, json.loads(text), failure)
        return self._arrays(bodies)

    def _check(self, rank: int, head: dict[str, Any], failure: Status | None) -> None:
        name, agreement = self._loaded.executable.program.name, self._loaded.agreement
        own = self._processes.rank
        if head["fingerprint"] != agreement:
            raise invalid(
                f"the processes disagree on execution {self._number}: process {rank} runs "
                f"{head['program']!r} (fingerprint {head['fingerprint'][:12]}), process {own} runs "
                f"{name!r} ({agreement[:12]}); programs, options and devices have to be equal"
            )
        if rank == own and failure is not None:
            raise failure
        if head["failure"] is not None:
            raise Status(
                ErrorCode.ABORTED, f"process {rank} could not run {name!r}: {head['failure']}"
            )

    def _arrays(self, bodies: Sequence[bytes]) -> list[list[Array]]:
        loaded = self._loaded
        types = [parameter.type for parameter in loaded.executable.signature.parameters]
        by_rank = {
            rank: memoryview(body) for rank, body in zip(loaded.members, bodies, strict=True)
        }
        found = []
        for owner in loaded.owners:
            row = []
            for type in types:
                item = np.dtype(type.dtype.numpy)
                count = int(np.prod(type.shape, dtype=np.int64))
                data = by_rank[owner]
                array = np.frombuffer(data[: count * item.itemsize], np.uint8).view(item)
                row.append(array.reshape(type.shape))
                by_rank[owner] = data[count * item.itemsize :]
            found.append(row)
        return found


def _bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()
