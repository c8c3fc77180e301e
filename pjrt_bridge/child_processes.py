"""Python processes of the bridge's own, which try what could end this one.

`python -m` looks for modules in the working directory first. Who looks at a file in a folder that
came from elsewhere must not run a `select.py` that lies beside it, so these processes find modules
where this one does, and nowhere else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def command(module: str, *arguments: str) -> list[str]:
    """What runs a module in a new process, to be used with `environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which a new process finds the modules that this one finds.

    Args:
        more: further variables.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(more or {})}
