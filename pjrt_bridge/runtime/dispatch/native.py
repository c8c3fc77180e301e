"""The compiled module of the path of one call, where this installation has it.

Without it, or with `PJRT_BRIDGE_DISPATCH=python` in the environment, Python does the same work.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

from pjrt_bridge import native_modules


def _load() -> ModuleType | None:
    if os.environ.get("PJRT_BRIDGE_DISPATCH") == "python":
        return None
    try:
        return native_modules.load("pjrt_bridge.runtime.dispatch._dispatch", Path(__file__).parent)
    except ImportError:
        return None


module = _load()
"""`pjrt_bridge.runtime.dispatch._dispatch`, or None."""
