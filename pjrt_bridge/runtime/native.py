"""The dispatcher in C, where this installation has it.

Without it, or with `PJRT_BRIDGE_DISPATCH=python` in the environment, Python does the same,
many times slower.
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from pjrt_bridge import environment, native_modules, storage, user_warnings

VARIABLE = "PJRT_BRIDGE_DISPATCH"

_ADVICE = (
    "install a wheel of pjrt-bridge, or a C compiler (Debian: apt install gcc) and then run "
    "`pip install --force-reinstall --no-deps --no-binary pjrt-bridge pjrt-bridge`, from a "
    "checkout `pip install -e .`"
)


def is_unwanted() -> bool:
    """Whether the user wants no dispatcher in C.

    Raises:
        VariableError: nobody can tell.
    """
    return environment.choice(VARIABLE, ("c", "python")) == "python"


def _load() -> ModuleType | None:
    # A value that is neither is refused where plugins are looked for, not at an import.
    if environment.value(VARIABLE).lower() == "python":
        return None
    try:
        return native_modules.load(
            "pjrt_bridge.runtime.dispatch._dispatch", Path(__file__).parent / "dispatch"
        )
    except ImportError:
        return None


module = _load()
"""`pjrt_bridge.runtime.dispatch._dispatch`, or None."""


def description() -> str:
    """What runs the path of one call, for people: `C`, or `Python` with the reason and advice."""
    if module is not None:
        return "C"
    if is_unwanted():
        return f"Python (slow): {VARIABLE}=python asks for it"
    return f"Python (slow): the compiled module is missing or stale; {_ADVICE}"


@cache
def warn_where_missing() -> None:
    """Say that calls are slow for want of the compiled module, once in an environment's life.

    An empty file in the cache folder keeps that it was said; without a cache folder each process
    says it once.
    """
    if module is not None or is_unwanted():
        return
    folder = storage.cache_folder("told")
    if folder is not None:
        environment = hashlib.sha256(f"{sys.prefix}\0{__file__}".encode()).hexdigest()
        told = folder / f"dispatch-{environment[:16]}"
        if storage.read(told, 0) is not None:
            return
        storage.write(told, b"")
    user_warnings.warn(
        f"the compiled module of pjrt_bridge is missing, so each call takes many times as long; "
        f"{_ADVICE}. This is said once; `pjrt-bridge plugins` shows it"
    )
