"""The compiled module of the hot path, where this installation has it.

Without it, or with `PJRT_BRIDGE_DISPATCH=python` in the environment, Python does the same work.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

_REVISION = 8
"""What this version of the bridge expects; a module that was built from other sources is left."""


def _load() -> ModuleType | None:
    if os.environ.get("PJRT_BRIDGE_DISPATCH") == "python":
        return None
    try:
        found = importlib.import_module("pjrt_bridge.runtime._dispatch")
    except ImportError:
        return None
    return found if found.REVISION == _REVISION else None


module = _load()
"""`pjrt_bridge.runtime._dispatch`, or None."""
