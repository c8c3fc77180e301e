"""Segments on the real plugin, made to fail where a test wants it, for every framework."""

from __future__ import annotations

from typing import Any, Literal

from pjrt_bridge.errors import Internal, ResourceExhausted
from pjrt_bridge.mixed import launchers
from pjrt_bridge.mixed.execution import Launched
from pjrt_bridge.mixed.launchers import Launcher

When = Literal["put", "start", "end"]

FUNCTIONS: dict[When, str] = {
    "put": "Client_BufferFromHostBuffer",
    "start": "LoadedExecutable_Execute",
    "end": "Event_Await",
}
"""Which function of the plugin fails."""


class Faults:
    """Faults of segments that are compiled from now on.

    Attributes:
        starts: names of the programs whose executions were asked for.
        ends: how many were waited for.
        failing: name of the program whose executions fail (None: of any), and when: before they
            start, at once or at their end.
    """

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.ends = 0
        self.failing: tuple[str | None, When] | None = None

    def launcher_of(self, executable: Any, *arguments: Any, **named: Any) -> Launcher:
        """`launcher_of`, with faults."""
        return _Launcher(
            self, executable.name, launchers.launcher_of(executable, *arguments, **named)
        )

    def fails(self, name: str, when: When) -> bool:
        """Whether an execution of a program is to fail now."""
        return self.failing in ((name, when), (None, when))


class _Launcher:
    def __init__(self, faults: Faults, name: str, launcher: Launcher) -> None:
        self._faults = faults
        self._name = name
        self._launcher = launcher

    def launch(self, values: Any, call: Any) -> Launched:
        self._faults.starts.append(self._name)
        whens: tuple[When, ...] = ("put", "start")
        for when in whens:
            if self._faults.fails(self._name, when):
                raise ResourceExhausted(
                    "injected fault", code=8, plugin="cpu", function=FUNCTIONS[when]
                )
        doomed = self._faults.fails(self._name, "end")
        return _Started(self._faults, self._launcher.launch(values, call), doomed)


class _Started:
    def __init__(self, faults: Faults, started: Launched, doomed: bool) -> None:
        self._faults = faults
        self._started = started
        self._doomed = doomed
        self.outputs = started.outputs
        self.tensors = started.tensors

    def finish(self) -> None:
        self._started.finish()
        self._faults.ends += 1
        if self._doomed:
            raise Internal("injected fault", code=13, plugin="cpu", function=FUNCTIONS["end"])
