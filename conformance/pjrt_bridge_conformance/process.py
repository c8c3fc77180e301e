"""The worker process as its parent sees it: asked for one check at a time, and it may die of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from typing import Any

from pjrt_bridge import child_processes
from pjrt_bridge.registry.trial import VARIABLE as TRIAL_VARIABLE
from pjrt_bridge.storage import FOLDER_VARIABLE
from pjrt_bridge_conformance.check import Check
from pjrt_bridge_conformance.context import Subject
from pjrt_bridge_conformance.report import Status

Answer = tuple[Status, str, dict[str, Any]]
"""Status, reason, and what else the worker said."""


class WorkerProcess:
    """A worker process, started when it is needed, and again when it is gone.

    Args:
        subject: the plugin.
        limit: seconds that a check, or the end of the process, may take.
    """

    def __init__(self, subject: Subject, limit: float) -> None:
        worker = "pjrt_bridge_conformance.worker"
        self._command = child_processes.command(worker, subject.to_json())
        self._limit = limit
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115

    def run(self, check: Check) -> Answer:
        """Run a check; one that takes the process down, or never answers, has a status as well."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._kill()

        watchdog = threading.Timer(self._limit, give_up)
        watchdog.start()
        try:
            process.stdin.write(f"{check.name}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        except BaseException:
            # Interrupted, its late answer must not be waited for.
            self._kill()
            raise
        finally:
            watchdog.cancel()
        if late.is_set():
            self._collected()
            return Status.HANG, f"no answer within {self._limit:g} s", {}
        if not line:
            return Status.CRASH, self._last_words(self._collected()), {}
        try:
            answer = json.loads(line)
            if answer["name"] != check.name:
                raise ValueError(f"an answer about {answer['name']!r}")
            return Status(answer["status"]), str(answer["reason"]), answer
        except (ValueError, KeyError, TypeError) as error:
            self.end()
            return Status.FAIL, f"the worker gave no proper answer: {error}", {}

    def end(self) -> Answer:
        """Let the process end; a pass where it does so by itself, in time and without a signal."""
        process = self._process
        if process is None:
            return Status.PASS, "", {}
        assert process.stdin is not None
        try:
            process.stdin.close()
            process.wait(self._limit)
        except subprocess.TimeoutExpired:
            self._kill()
            self._collected()
            return Status.HANG, f"did not end within {self._limit:g} s", {}
        except BrokenPipeError:
            pass
        status = self._collected()
        return (Status.CRASH, self._last_words(status), {}) if status else (Status.PASS, "", {})

    def close(self) -> None:
        """Kill the process if it is still there, and forget what it wrote."""
        if self._process is not None:
            self._kill()
            self._collected()
        self._errors.close()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._errors.seek(0)
            self._errors.truncate()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                errors="replace",
                # A program from the cache would say nothing about the compiler.
                # And this process is a trial itself.
                env=child_processes.environment({FOLDER_VARIABLE: "off", TRIAL_VARIABLE: "off"}),
                # A group of its own: processes that a check has started go with it.
                start_new_session=True,
            )
        return self._process

    def _kill(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)

    def _collected(self) -> int:
        """The status of a process that has ended, or is about to."""
        process, self._process = self._process, None
        assert process is not None
        with process:
            return process.wait()

    def _last_words(self, status: int) -> str:
        self._errors.seek(0)
        said = child_processes.last_words(self._errors.read()) if status else ""
        return f"{child_processes.ended(status)}{f': {said}' if said else ''}"
