"""The hook modules of installed packages, imported and called each on its own.

A package that cannot be imported, or whose hook raises, must not take the others with it; pluggy's
own loader and callers stop at the first failure.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pluggy

from pjrt_bridge import user_warnings
from pjrt_bridge.errors import OptionError, PjrtBridgeError, VariableError
from pjrt_bridge.registry import hookspecs

# A package's code may end in anything, a call of exit() included. A `VariableError` that it raises
# is no failure of the package: whoever set the variable hears of it.
HOOK_FAILURES = (Exception, SystemExit)


@dataclass(frozen=True)
class HookModule:
    """One entry point of the group `pjrt_bridge`.

    Attributes:
        name: name of the entry point.
        source: the entry point and its package in words.
        relay: calls the hooks of this module alone; None where it cannot be used.
        reason: why it cannot be used.
    """

    name: str
    source: str
    relay: pluggy.HookRelay | None = None
    reason: str | None = None


class Hooks:
    """Every hook module of this environment.

    Attributes:
        modules: the usable ones, ordered by entry-point name.
        failures: those that could not be imported or that implement no hook.
    """

    def __init__(self) -> None:
        self.modules: list[HookModule] = []
        self.failures: list[HookModule] = []
        self._objects: list[Any] = []
        entries = metadata.entry_points(group=hookspecs.GROUP)
        for entry in sorted(entries, key=lambda entry: (entry.name, entry.value)):
            self._load(entry)

    def _load(self, entry: metadata.EntryPoint) -> None:
        package = entry.value if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
        source = f"entry point {entry.name} of {package}"
        try:
            relay = self._register(entry.load(), source)
        except VariableError:
            raise
        except HOOK_FAILURES as error:
            self.failures.append(HookModule(entry.name, source, reason=reason_of(error)))
        else:
            self.modules.append(HookModule(entry.name, source, relay))

    def _register(self, module: Any, source: str) -> pluggy.HookRelay:
        if any(module is other for other in self._objects):
            raise OptionError("another entry point names the same module")
        self._objects.append(module)
        manager = pluggy.PluginManager(hookspecs.GROUP)
        manager.add_hookspecs(hookspecs)
        known = sorted(vars(manager.hook))
        manager.register(module)
        listed = f"known hooks: {', '.join(known)}"
        never_called = _never_called(module, known)
        if not any(getattr(manager.hook, hook).get_hookimpls() for hook in known):
            raise OptionError("; ".join(["implements no hook", *never_called, listed]))
        for text in never_called:
            user_warnings.warn(f"{source}: {text}; {listed}")
        return manager.hook

    def callers(self, hook: str) -> Iterator[tuple[HookModule, pluggy.HookCaller]]:
        """One caller per module that implements `hook`; a call returns a list of results."""
        for module in self.modules:
            caller: pluggy.HookCaller = getattr(module.relay, hook)
            if caller.get_hookimpls():
                yield module, caller


def _never_called(module: Any, known: list[str]) -> list[str]:
    """Why functions that look like hooks are never called."""
    found = []
    for name in filter(lambda name: name.startswith(f"{hookspecs.GROUP}_"), dir(module)):
        function = getattr(module, name, None)
        if not callable(function):
            continue
        # The mark that pluggy's HookimplMarker leaves.
        marked = hasattr(function, f"{hookspecs.GROUP}_impl")
        if name in known and not marked:
            found.append(f"{name} is not marked with hookimpl, so it is never called")
        elif marked and name not in known:
            found.append(f"{name} is no hook that this version knows, so it is never called")
    return found


def reason_of(error: BaseException) -> str:
    """The reason that users read for a failure in a package's code, on one line."""
    text = " ".join(str(error).split()) or "no message"
    if isinstance(error, PjrtBridgeError):
        return text
    return f"{type(error).__name__}: {text}{raised_in(error)}"


def raised_in(error: BaseException) -> str:
    """File and line that raised an error, such as " (hooks.py, line 7)"; empty if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
