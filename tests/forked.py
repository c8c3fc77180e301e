"""Processes that begin with modules that take seconds to import.

One process imports them and forks for each request. The child runs the source as `python -c` would
and ends as Python does, so that whatever it loads or starts is its own. Modules of the bridge are
not to be imported before: they tell a fork's child that what it has belongs to its parent.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PLAIN = (
    "asyncio",
    "jaxlib.mlir.dialects.chlo",
    "jaxlib.mlir.dialects.func",
    "jaxlib.mlir.dialects.stablehlo",
    "ml_dtypes",
    "numpy",
    "pytest",
)
"""What the runtime, and tests of it, import of others."""

TORCH = "torch._dynamo.backends.common"
"""What the backend imports of PyTorch."""


class Parent:
    """A process that has imported modules."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                "-c",
                # The child's source finds an empty __main__.
                "exec(__import__('tests.forked', fromlist=['']).serve())",
                *modules,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        atexit.register(self.close)

    def run(
        self, source: str, arguments: Sequence[str] = (), *, timeout: float, cwd: Path = ROOT
    ) -> subprocess.CompletedProcess[str]:
        """What became of a child that ran the source, as `subprocess.run` tells it."""
        with tempfile.TemporaryDirectory() as folder:
            outputs = [os.path.join(folder, name) for name in ("stdout", "stderr")]
            request = {
                "source": source,
                "arguments": ["-c", *arguments],
                "environment": dict(os.environ),
                "cwd": str(cwd),
                "outputs": outputs,
            }
            pid = self._ask(request)
            watchdog = threading.Timer(timeout, os.kill, (pid, 9))
            watchdog.start()
            try:
                status = self._answer()
            finally:
                watchdog.cancel()
            out, err = (Path(path).read_text() for path in outputs)
        return subprocess.CompletedProcess(source, status, out, err)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _ask(self, request: Mapping[str, Any]) -> int:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> int:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"the process that forks ended with status {self._process.wait()}"
        return int(line)


@cache
def parent(*modules: str) -> Parent:
    """One for these modules, which lives as long as this process."""
    return Parent(modules)


def serve() -> str:
    """Fork for each request; in a child the source to run, in the parent nothing at the end."""
    for name in sys.argv[1:]:
        __import__(name)
    # Children do not look for garbage among all that, neither while they run nor at their end.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            return _begin(request)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return ""


def _begin(request: Mapping[str, Any]) -> str:
    for descriptor, path in enumerate([os.devnull, *request["outputs"]]):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.argv[:] = request["arguments"]
    source: str = request["source"]
    return source
