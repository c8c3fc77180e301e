"""The real plugin, made to fail where a test wants it."""

from __future__ import annotations

from typing import Any, Literal

from pjrt_bridge.errors import Internal, ResourceExhausted
from pjrt_bridge.mixed import launchers
from pjrt_bridge.mixed.execution import Launched
from pjrt_bridge.mixed.launchers import Launcher

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

    def launcher_of(self, *arguments: Any, **named: Any) -> Launcher:
        """`launcher_of`, with faults."""
        return _Launcher(self, launchers.launcher_of(*arguments, **named))


class _Launcher:
    def __init__(self, faults: Faults, launcher: Launcher) -> None:
        self._faults = faults
        self._launcher = launcher

    def launch(self, values: Any, call: Any) -> Launched:
        self._faults.starts += 1
        if self._faults.failing == "start":
            function = "LoadedExecutable_Execute"
            raise ResourceExhausted("the sky fell", code=8, plugin="cpu", function=function)
        return _Started(self._faults, self._launcher.launch(values, call))


class _Started:
    def __init__(self, faults: Faults, started: Launched) -> None:
        self._started = started
        self._doomed = faults.failing == "end"
        self.outputs = started.outputs
        self.tensors = started.tensors

    def finish(self) -> None:
        self._started.finish()
        if self._doomed:
            raise Internal("the sky fell", code=13, plugin="cpu", function="Event_Await")
