"""The kind of object that a handle owns, for constructors that take one over."""

from __future__ import annotations

from typing import Any

from pjrt_bridge.errors import ArgumentError
from pjrt_bridge.runtime.ownership.handles import Handle
from pjrt_bridge.wrong_arguments import require


def require_kind(handle: Any, kinds: tuple[str, ...], what: str) -> None:
    """Check that a handle owns an object of a kind: plugins end the process on others.

    Args:
        handle: what was given.
        kinds: names as `Handle.kind` has them.
        what: the constructor and its argument, such as "Executable: handle".

    Raises:
        ArgumentError: it is no handle, or owns something else.
    """
    require(handle, Handle, what)
    if handle.kind not in kinds:
        expected = " or ".join(kinds)
        raise ArgumentError(f"{what}: found a handle of a {handle.kind}, expected of {expected}")
