"""What a run ran on."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

_PACKAGES = ("torch", "tensorflow-cpu", "jaxlib", "xla-cpu-pjrt", "transformers", "pjrt-bridge")


def machine() -> Mapping[str, str]:
    """Processor, cores, memory and versions, by what they are called."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
    }


def _processor() -> str:
    """The model, and those of its instructions that decide which kernels are there."""
    text = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    known = set(flags[1].split()) if flags else set()
    names = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "BF16", "amx_tile": "AMX"}
    found = [name for flag, name in names.items() if flag in known]
    name = model[1].strip() if model else platform.processor() or "unknown"
    return f"{name} ({', '.join(found)})" if found else name


def version(package: str) -> str:
    """Of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
