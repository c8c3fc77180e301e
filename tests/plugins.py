"""The plugin that tests run on, found through the metadata of the wheel that brings it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from tests import forked

# The library logs each client to standard error otherwise; it reads this when it is loaded.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

PRELUDE = """
import numpy as np
from pjrt_bridge.errors import *
from pjrt_bridge.runtime import *
from tests import programs
from tests.plugins import cpu_plugin
"""


def of_device() -> str:
    """The plugin that `torch.device("pjrt")` stands for in sweeps; TEST_PLUGIN names another."""
    return os.environ.get("TEST_PLUGIN", "cpu")


def cpu_library() -> Path:
    """Path of the XLA CPU plugin, of the build that `PJRT_BRIDGE_CPU_BUILD` names."""
    from pjrt_bridge_cpu import builds

    return builds.chosen().library()


def cpu_plugin():  # type: ignore[no-untyped-def]
    """The XLA CPU plugin, loaded."""
    from pjrt_bridge.runtime import Plugin

    return Plugin.load(cpu_library(), name="cpu")


def require_dispatcher() -> None:
    """Skip where the compiled module cannot be; fail where it should be and is not."""
    from pjrt_bridge.runtime import native

    if os.environ.get("PJRT_BRIDGE_DISPATCH") == "python":
        pytest.skip("PJRT_BRIDGE_DISPATCH=python", allow_module_level=True)
    if native.module is None and shutil.which("cc") is None:
        pytest.skip("the dispatcher was not built: no C compiler", allow_module_level=True)
    assert native.module is not None, "the dispatcher was not built: pip install -e ."


def working_threads(work: str) -> str:
    """Python that leaves three daemon threads at work for ever."""
    return f"""
import threading, time
def work():
    while True:
        {work}
threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
time.sleep(0.3)
"""


def run_python(
    source: str,
    *arguments: str,
    prelude: str = PRELUDE,
    timeout: float = 60,
    imported: Sequence[str] = forked.PLAIN,
) -> str:
    """Run Python in a process of its own; what it printed.

    Asserts that the process neither died of a signal nor failed, and wrote nothing to standard
    error: an exception that the source expects it has to catch itself. Of modules that take long to
    import, `imported` names those that the process may begin with, none of them the bridge's.
    """
    text = prelude + dedent(source)
    done = forked.parent(*imported).run(text, arguments, timeout=timeout)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stderr == "", done.stderr
    return done.stdout.strip()
