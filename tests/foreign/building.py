"""Builds of XLA's CPU plugin that other projects bring, installed by `make plugins-of-others`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pjrt_bridge_cpu.builds import BUILDS, VARIABLE, Build

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / ".plugins-of-others"
OTHERS = [build for build in BUILDS.values() if build.name != "xla-cpu-pjrt"]
ALL = list(BUILDS.values())

needed = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not FOLDER.is_dir(), reason=f"no folder {FOLDER.name}: make plugins-of-others"
    ),
]
"""Marks of the tests of these builds."""


def environment(build: Build) -> dict[str, str]:
    """The environment in which the plugin `cpu` is a build."""
    path = os.pathsep.join(filter(None, [*sys.path, str(FOLDER)]))
    return {**os.environ, "PYTHONPATH": path, VARIABLE: build.name}


def run(build: Build, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run Python with a build, and whatever comes of it."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(build),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def answer(build: Build, source: str, timeout: float = 200) -> Any:
    """What a piece of Python prints as JSON."""
    done = run(build, "-c", source, timeout=timeout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
