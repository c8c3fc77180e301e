"""Whether there is a usable GPU, asked in another process.

A driver that is broken can hang whoever initializes it, and what has initialized it cannot fork any
more. So a process of its own asks, and only where the driver's device files are.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

DEVICE_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Of the driver on Linux, and of the one of Windows seen from Linux."""

TIMEOUT = 30.0
"""Seconds; the first use of a GPU after a start of the machine takes some."""

PROBE = """
import ctypes

try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    raise SystemExit(f"the driver's library cannot be loaded: {error}")
status = driver.cuInit(0)
if status:
    raise SystemExit(f"the driver does not start: cuInit returned {status}")
count = ctypes.c_int()
status = driver.cuDeviceGetCount(ctypes.byref(count))
if status or not count.value:
    raise SystemExit("the driver sees no GPU; is CUDA_VISIBLE_DEVICES empty?")
"""
"""Ends with a reason where no GPU can be used (CUDA driver API, cuInit and cuDeviceGetCount)."""


@cache
def no_gpu() -> str | None:
    """Why there is no GPU to use; None where there is one. Asked once in a process."""
    return ask(DEVICE_FILES, PROBE, TIMEOUT)


def ask(device_files: Iterable[Path], probe: str, timeout: float) -> str | None:
    """Run a probe where one of some files exists.

    Args:
        device_files: without all of them there is no driver.
        probe: Python that exits with a reason.
        timeout: seconds to wait for it.
    """
    files = tuple(device_files)
    if not any(file.exists() for file in files):
        return f"no NVIDIA driver (there is no {files[0]})"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", probe], capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return f"the NVIDIA driver did not answer for {timeout:g} s"
    except OSError:
        # Without a process that is not known; the plugin itself says what is wrong.
        return None
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines()
    return said[-1] if said else f"the driver's probe ended with status {done.returncode}"
