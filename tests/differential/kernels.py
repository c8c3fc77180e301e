"""Kernels of the CPU plugin at any size: else programs of small tensors would never call them."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from pkgutil import walk_packages

import pjrt_bridge_cpu

ENVIRONMENT = "PJRT_BRIDGE_TESTS_KERNELS"
"""Set to "everywhere" for a worker process in which kernels are called at any size."""

_PACKAGES = ("pjrt_bridge_cpu", "pjrt_bridge.torch_interop.emit")
_LIMIT = re.compile(r"_?(LEAST|SHORTEST)(_[A-Z]+)*")
"""Names of the sizes from which on a kernel is worth its call."""


def call_kernels_everywhere() -> None:
    """Lower the sizes from which on kernels are called, where the environment asks for it."""
    if os.environ.get(ENVIRONMENT) != "everywhere":
        return
    import_module("pjrt_bridge.torch_interop.backend")
    for found in walk_packages(pjrt_bridge_cpu.__path__, "pjrt_bridge_cpu."):
        if not found.name.endswith("__main__"):
            import_module(found.name)
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGES):
            for limit, value in list(vars(module).items()):
                if _LIMIT.fullmatch(limit) and type(value) is int:
                    setattr(module, limit, 1)
