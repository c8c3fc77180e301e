"""The thread that runs a device's work: copies and programs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Worker:
    """A thread that runs jobs in the order in which they are submitted.

    A job must neither raise nor wait for other jobs.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job after those before it; after `close`, run it at once in the calling thread."""
        with self._lock:
            closed = self._closed
            if not closed:
                if self._thread is None:
                    # A daemon: a client that is never destroyed must not keep the process alive.
                    self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                    self._thread.start()
                self._jobs.put(job)
        if closed:
            job()

    def close(self) -> None:
        """Run what was submitted, and end the thread."""
        with self._lock:
            self._closed = True
            self._jobs.put(None)
        # A callback of an event may destroy the client on this very thread.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            # Without this the last job, and its buffers, would live until the next one comes.
            del job
