"""Where plugins come from, each source in turn.

In the order in which they may claim a name: the variable `PJRT_BRIDGE_PLUGIN`, JAX's variable
`PJRT_NAMES_AND_LIBRARY_PATHS`, the hooks of installed packages, and vendor wheels that know
nothing of the bridge. A source never fails as a whole: what cannot be used becomes a finding that
carries the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from pjrt_bridge.errors import OptionError, PluginConflict, VariableError
from pjrt_bridge.registry.hooks import HOOK_FAILURES, Hooks, reason_of
from pjrt_bridge.registry.spec import PluginSpec, parse_reference
from pjrt_bridge.registry.wheels import find_wheel_libraries

BRIDGE_VARIABLE = "PJRT_BRIDGE_PLUGIN"
"""Selects a plugin for this process: a name, a path or `name:path`."""

JAX_VARIABLE = "PJRT_NAMES_AND_LIBRARY_PATHS"
"""Adds plugins: `name:path,name2:path2`; a path may be a JSON file."""

ENVIRONMENT_PRIORITY = 1000
"""Priority of what the user adds by hand: above what installed packages state."""

WHEEL_PRIORITY = -1000
"""Priority of a wheel that no package speaks for: below any that one does."""


class SourceKind(IntEnum):
    """The sources, the first of which wins a name."""

    BRIDGE_VARIABLE = 1
    JAX_VARIABLE = 2
    ENTRY_POINT = 3
    VENDOR_WHEEL = 4


@dataclass(frozen=True)
class Finding:
    """One thing that a source brought: a specification, or why there is none.

    Attributes:
        kind: the source.
        name: the plugin's name; for a failure the best that is known of it.
        source: the source in words, with the package where there is one.
        spec: the specification, `source` filled in; None for a failure.
        reason: why there is no specification.
        library: what it is about; None where there is no library, or nobody knows which.
    """

    kind: SourceKind
    name: str
    source: str
    spec: PluginSpec | None
    reason: str | None = None
    library: Path | None = None

    @staticmethod
    def of(kind: SourceKind, spec: PluginSpec) -> Finding:
        """The finding of a usable specification."""
        return Finding(kind, spec.name, spec.source, spec, library=spec.path)


def from_bridge_variable(value: str) -> Iterator[Finding]:
    """The plugin that `PJRT_BRIDGE_PLUGIN` brings; none where it only names one."""
    kind = SourceKind.BRIDGE_VARIABLE
    if value.strip():
        yield from _from_reference(kind, value, BRIDGE_VARIABLE)


def from_jax_variable(value: str) -> Iterator[Finding]:
    """The plugins that `PJRT_NAMES_AND_LIBRARY_PATHS` lists."""
    for item in filter(None, (part.strip() for part in value.split(","))):
        if ":" in item:
            yield from _from_reference(SourceKind.JAX_VARIABLE, item, JAX_VARIABLE)
        else:
            reason = f"found {item!r}, expected name:path"
            yield Finding(SourceKind.JAX_VARIABLE, item, JAX_VARIABLE, None, reason)


def _from_reference(kind: SourceKind, text: str, variable: str) -> Iterator[Finding]:
    try:
        parsed = parse_reference(text, source=variable, priority=ENVIRONMENT_PRIORITY)
    except (OptionError, PluginConflict) as error:
        yield Finding(kind, text.partition(":")[0].strip(), variable, None, str(error))
        return
    if isinstance(parsed, PluginSpec):
        yield Finding.of(kind, parsed)


def from_hooks(hooks: Hooks) -> Iterator[Finding]:
    """The plugins that packages' hooks `pjrt_bridge_plugins` return, and the packages that fail."""
    kind = SourceKind.ENTRY_POINT
    for failed in hooks.failures:
        yield Finding(kind, failed.name, failed.source, None, failed.reason)
    for module, caller in hooks.callers("pjrt_bridge_plugins"):
        try:
            specs = [spec for result in caller() for spec in _as_specs(result)]
        except VariableError:
            raise
        except HOOK_FAILURES as error:
            yield Finding(kind, module.name, module.source, None, reason_of(error))
            continue
        for spec in specs:
            yield Finding.of(kind, replace(spec, source=module.source))


def _as_specs(result: object) -> list[PluginSpec]:
    if isinstance(result, PluginSpec):
        return [result]
    wanted = "expected a PluginSpec or several of them"
    if not isinstance(result, Iterable):
        raise OptionError(f"pjrt_bridge_plugins returned {result!r}, {wanted}")
    specs = list(result)
    for spec in specs:
        if not isinstance(spec, PluginSpec):
            raise OptionError(f"pjrt_bridge_plugins returned {spec!r} among others, {wanted}")
    return specs


def from_wheels() -> Iterator[Finding]:
    """Plugins inside vendor wheels, with no options of their own."""
    kind = SourceKind.VENDOR_WHEEL
    for wheel in find_wheel_libraries():
        if wheel.library is None or wheel.reason is not None:
            yield Finding(kind, wheel.name, wheel.origin, None, wheel.reason, wheel.library)
        else:
            spec = PluginSpec(
                wheel.name, wheel.library, priority=WHEEL_PRIORITY, source=wheel.origin
            )
            yield Finding.of(kind, spec)
