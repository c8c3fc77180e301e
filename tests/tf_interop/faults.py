"""The real plugin, made to fail where a test wants it."""

from __future__ import annotations

from typing import Any, Literal

from pjrt_bridge.errors import Internal, ResourceExhausted
from pjrt_bridge.mixed.launch import Path, Started
from pjrt_bridge.tf_interop import paths

When = Literal["start", "end"]


class Faults:
    """Faults of segments that are compiled from now on.

    Attributes:
        starts: how many executions were asked for.
        failing: when executions fail: before they start, or at their end; None: they do not.
    """

    def __init__(self) -> None:
        self.starts = 0
        self.failing: When | None = None

    def path_of(self, *arguments: Any) -> Path:
        """`paths.path_of`, with faults."""
        return _Path(self, paths.path_of(*arguments))


class _Path:
    def __init__(self, faults: Faults, path: Path) -> None:
        self._faults = faults
        self._path = path

    def launch(self, values: Any, call: Any) -> Started:
        self._faults.starts += 1
        if self._faults.failing == "start":
            function = "LoadedExecutable_Execute"
            raise ResourceExhausted("the sky fell", code=8, plugin="cpu", function=function)
        return _Started(self._faults, self._path.launch(values, call))


class _Started:
    def __init__(self, faults: Faults, started: Started) -> None:
        self._started = started
        self._doomed = faults.failing == "end"
        self.outputs = started.outputs
        self.tensors = started.tensors

    def finish(self) -> None:
        self._started.finish()
        if self._doomed:
            raise Internal("the sky fell", code=13, plugin="cpu", function="Event_Await")
