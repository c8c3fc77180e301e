"""Compiled modules, which are used only when they were built from the C sources beside them.

In a development install a module stays where it is when its sources change. It holds a hash of the
sources that it was built from (`build_native.py` of each distribution), and a stale module would
take and give other things than Python expects. Wheels hold no sources: there the module and the
Python code come from one build.
"""

from __future__ import annotations

import importlib
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from pjrt_bridge import user_warnings


def load(name: str, sources: Path) -> ModuleType:
    """Import a compiled module.

    Args:
        name: dotted.
        sources: folder of the C files that it is built from; without any in it nothing is compared.

    Raises:
        ImportError: it is not there, or was built from other sources; then there is a warning, too.
    """
    module = importlib.import_module(name)
    expected = revision(sources)
    if expected is not None and getattr(module, "REVISION", None) != expected:
        text = (
            f"{module.__file__} was built from other sources than those in {sources}, and is not "
            "used; what it does is done without it, more slowly. To build it again, install the "
            "distribution that it belongs to again: `pip install -e .`, or `-e plugins/cpu`"
        )
        user_warnings.warn(text)
        raise ImportError(text)
    return module


def revision(sources: Path) -> str | None:
    """Hash of the names and contents of the C files in a folder; None where there are none."""
    files = sorted(sources.glob("*.[ch]"))
    if not files:
        return None
    parts = [part for path in files for part in (path.name.encode(), path.read_bytes())]
    return sha256(b"\0".join(parts)).hexdigest()
