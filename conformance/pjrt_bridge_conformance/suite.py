"""All checks there are: those of this package, and those of modules that a user names."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from pjrt_bridge.errors import OptionError
from pjrt_bridge_conformance.check import Check, Group

LOAD = "abi.load"
"""The check that comes first: without it there is nothing to check."""

CLIENT = "lifecycle.client"
"""The check that comes before all that need a client."""

_MODULES = (
    "abi",
    "structs",
    "extensions",
    "lifecycle",
    "identity",
    "devices",
    "data",
    "raw_data",
    "transfers",
    "placement",
    "elementwise",
    "conversions",
    "shaping",
    "operations",
    "special",
    "notation",
    "asynchronous",
    "donation",
    "layouts",
    "collectives",
    "errors",
    "executables",
    "serialization",
    "features",
)


def suite(modules: Sequence[str] = ()) -> dict[str, Check]:
    """The checks by name, in the order in which they run.

    Args:
        modules: modules whose `Group` objects are added.

    Raises:
        OptionError: a module that cannot be imported or has no checks, or a name that is taken.
    """
    own = [f"{__package__}.checks.{name}" for name in _MODULES]
    found: dict[str, Check] = {}
    for name in (*own, *modules):
        for check in _checks(name):
            if check.name in found:
                raise OptionError(f"{name}: there is a check {check.name} already")
            found[check.name] = check
    groups = dict.fromkeys(check.group for check in found.values())
    return {name: found[name] for name in (LOAD, CLIENT)} | {
        check.name: check for group in groups for check in found.values() if check.group == group
    }


def _checks(name: str) -> list[Check]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise OptionError(f"there is no module {name!r} with checks") from error
    groups = [value for value in vars(module).values() if isinstance(value, Group)]
    if not groups:
        raise OptionError(f"module {name!r} has no Group of checks")
    return [check for group in groups for check in group.checks]


def selected(checks: dict[str, Check], patterns: Sequence[str]) -> list[Check]:
    """The checks to run: those that match, after those that they depend on.

    Args:
        checks: all checks.
        patterns: names, groups, or patterns with `*`; none means all.

    Raises:
        OptionError: a pattern that matches nothing.
    """
    if not patterns:
        return list(checks.values())
    wanted = []
    for pattern in patterns:
        matched = [
            check
            for check in checks.values()
            if fnmatchcase(check.name, pattern) or check.name.startswith(f"{pattern}.")
        ]
        if not matched:
            raise OptionError(f"--only {pattern}: no check has such a name; --list lists them")
        wanted += matched
    names = {check.name for check in wanted} | {LOAD, CLIENT}
    return [check for check in checks.values() if check.name in names]
