"""The processor: maker and instructions, by which PyTorch's libraries choose kernels, and cores."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

_INSTRUCTIONS = re.compile(r"avx\w*|amx_\w+|fma|f16c|asimd\w*|sve\w*|bf16|i8mm")


def cores() -> int:
    """How many cores this process may use: XLA's pool has a thread for each."""
    affinity = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() or 1 if affinity is None else len(affinity(0))


@cache
def instructions() -> str:
    """The architecture and the vector instructions."""
    flags = _stated().get("flags") or _stated().get("Features") or ""
    return " ".join((platform.machine(), *sorted(filter(_INSTRUCTIONS.fullmatch, flags.split()))))


@cache
def maker() -> str:
    """The maker's name as the processor states it; empty where it does not."""
    return _stated().get("vendor_id", "")


@cache
def has_wide_vectors() -> bool:
    """Whether vectors of 512 bits are as fast as others, element by element.

    The first processors with AVX-512 take a much lower clock rate for them, for which reason
    compilers stay at 256 bits unless told otherwise. Those with VBMI2 (Ice Lake, Zen 4 and later)
    do not; the one of the first kind that has instructions for bfloat16, Cooper Lake, lacks it.
    """
    return "avx512_vbmi2" in instructions().split()


@cache
def blas_lacks_its_instructions() -> bool:
    """Whether PyTorch's BLAS does without the widest vectors that the processor has.

    MKL, which is the BLAS of PyTorch's builds for x86-64, takes kernels by the maker's name: those
    for AVX-512 on Intel's processors alone. OneDNN asks for the instructions.
    """
    return maker() not in ("", "GenuineIntel") and "avx512f" in instructions().split()


@cache
def _stated() -> Mapping[str, str]:
    """What Linux says of the first core, by name; nothing on other systems."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    return found
