"""Tests with several processes: forks that run the same source, and a store that they all see."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import dedent

from tests import forked
from tests.plugins import run_python

PRELUDE = """
import os, signal, sys, tempfile, time
from tests.processes import FolderStore, fork
RANK = fork(int(sys.argv[1]), FOLDER := sys.argv[2])
COUNT = int(sys.argv[1])
import numpy as np
from pjrt_bridge.errors import *
from pjrt_bridge.runtime import *
from tests import programs

def reference(store, timeout=20, **options):
    from pjrt_bridge.registry import client
    options["process_timeout_ms"] = int(timeout * 1000)
    return client("reference", processes=Processes(RANK, COUNT, store), **options)

def failure(function):
    '''What a function raises, and after how many seconds.'''
    begin = time.monotonic()
    try:
        function()
    except PjrtBridgeError as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begin
    return None, time.monotonic() - begin

store = FolderStore(os.path.join(FOLDER, "store"))

def meet(name, *ranks):
    '''Go on where all these processes are, so that none waits for one that starts late.'''
    store.put(f"{name}/{RANK}", b"")
    for rank in ranks or range(COUNT):
        store.get(f"{name}/{rank}", 20)
"""


class FolderStore:
    """A key-value store: a file for each key."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(exist_ok=True)

    def get(self, key: str, timeout: float) -> bytes:
        """See `KeyValueStore`."""
        end = time.monotonic() + timeout
        while (found := self.try_get(key)) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"no process has put it within {timeout:g} s")
            time.sleep(0.002)
        return found

    def try_get(self, key: str) -> bytes | None:
        """See `KeyValueStore`."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, key: str, value: bytes) -> None:
        """See `KeyValueStore`."""
        path = self._path(key)
        written = path.with_name(f"{path.name}.{os.getpid()}")
        written.write_bytes(value)
        written.replace(path)

    def _path(self, key: str) -> Path:
        return self._folder / key.encode().hex()


def fork(count: int, folder: str) -> int:
    """Continue in forks of this process, which waits for them and ends; in each its number.

    What a fork prints goes to files in the folder.
    """
    children = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            for descriptor, name in ((1, "out"), (2, "err")):
                path = os.path.join(folder, f"{rank}.{name}")
                opened = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
                os.dup2(opened, descriptor)
                os.close(opened)
            return rank
        children.append(pid)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]))
    sys.stdout.flush()
    os._exit(0)


def run_processes(
    source: str,
    count: int,
    folder: Path,
    *,
    dying: Sequence[int] = (),
    timeout: float = 30,
    imported: Sequence[str] = forked.PLAIN,
    read: Callable[[str], object] = json.loads,
) -> list[object]:
    """Run Python in several processes; what each printed, read as JSON.

    The source finds RANK, COUNT, `store`, `reference(store)`, `failure(function)` and
    `meet(name)`. Asserts that
    the processes end well and write nothing to standard error, except for those that are `dying`,
    for which there is None.
    """
    arguments = (str(count), str(folder))
    text = run_python(
        dedent(source), *arguments, prelude=PRELUDE, timeout=timeout, imported=imported
    )
    found: list[object] = []
    for rank, status in enumerate(json.loads(text)):
        if rank in dying:
            assert status == -9, f"process {rank} ended with status {status}"
            found.append(None)
            continue
        out, err = ((folder / f"{rank}.{name}").read_text() for name in ("out", "err"))
        assert (status, err) == (0, ""), f"process {rank}: status {status}\n{out}{err}"
        found.append(read(out))
    return found
