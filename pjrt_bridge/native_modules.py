"""Compiled modules, which are used only when they were built from the C sources beside them.

A module is built where the bridge is installed, and stays where it is when sources change. It holds
a hash of the sources that it was built from (`build_native.py` of each distribution), and a stale
module would take and give other things than Python expects.
"""

from __future__ import annotations

import importlib
import warnings
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from pjrt_bridge.errors import BridgeWarning


def load(name: str, sources: Path) -> ModuleType:
    """Import a compiled module.

    Args:
        name: dotted.
        sources: folder of the C files that it is built from.

    Raises:
        ImportError: it is not there, or was built from other sources; then there is a warning, too.
    """
    module = importlib.import_module(name)
    if getattr(module, "REVISION", None) != revision(sources):
        text = (
            f"{module.__file__} was built from other sources than those in {sources}, and is not "
            "used; what it does is done without it, more slowly. To build it again, install the "
            "distribution that it belongs to again: `pip install -e .`, or `-e plugins/cpu`"
        )
        warnings.warn(text, BridgeWarning, stacklevel=3)
        raise ImportError(text)
    return module


def revision(sources: Path) -> str:
    """Hash of the names and contents of the C files in a folder."""
    files = sorted(sources.glob("*.[ch]"))
    parts = [part for path in files for part in (path.name.encode(), path.read_bytes())]
    return sha256(b"\0".join(parts)).hexdigest()
