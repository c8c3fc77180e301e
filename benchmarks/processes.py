"""The coordinator's side of a worker process."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pjrt_bridge.environment import BACKGROUND_VARIABLE

ROOT = Path(__file__).parent.parent

PATIENCE = 600.0
"""Seconds for one answer; the slowest of them compile a model."""


class Missing(Exception):
    """A competitor gave no number; `status` is "absent" or "failed", the message says why."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Process:
    """A worker process. Ends with its context, however that ends.

    Args:
        interpreter: runs it; the coordinator's own by default.
        environment: in addition to the coordinator's.
        module: serves the requests.
        log: gets what the process prints; by default it is kept only while the process is there.
    """

    def __init__(
        self,
        interpreter: str | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        module: str = "benchmarks.worker",
        log: Path | None = None,
    ) -> None:
        # Closed with the process.
        self._errors = tempfile.TemporaryFile() if log is None else log.open("a+b")  # noqa: SIM115
        self._unread = b""
        try:
            self._process = subprocess.Popen(
                [interpreter or sys.executable, "-m", module],
                cwd=ROOT,
                # All programs of a worker are compiled alike.
                env={**os.environ, BACKGROUND_VARIABLE: "off", **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        except OSError as error:
            self._errors.close()
            raise Missing("absent", f"{interpreter} cannot be run: {error.strerror}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests = self._process.stdin
        self._answers = self._process.stdout

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(self, do: str, *, patience: float = PATIENCE, **request: Any) -> dict[str, Any]:
        """Send a request, and wait for its answer.

        Args:
            do: what to do; the protocol is in `benchmarks.worker`.
            patience: seconds to wait.
            request: its further fields.

        Raises:
            Missing: the worker says so, died, or does not answer.
        """
        try:
            self._requests.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self._requests.flush()
        except OSError:
            raise self._died() from None
        answer: dict[str, Any] = json.loads(self._line(patience))
        for status in ("absent", "failed"):
            if status in answer:
                raise Missing(status, answer[status])
        return answer

    def _line(self, patience: float) -> bytes:
        deadline = time.monotonic() + patience
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                self._process.kill()
                raise Missing("failed", f"no answer within {patience:g} s")
            found = os.read(self._answers.fileno(), 1 << 16)
            if not found:
                raise self._died()
            self._unread += found
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _died(self) -> Missing:
        status = self._process.wait()
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return Missing("failed", f"the process ended {how}" + (f": {said[-1]}" if said else ""))

    def close(self) -> None:
        """End the process; one that does not within some seconds is killed."""
        # It may have ended before it took what was sent.
        with suppress(OSError):
            self._requests.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._errors.close()
