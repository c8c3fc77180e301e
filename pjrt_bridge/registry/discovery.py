"""Discovery: every source asked once, and the rules by which a name gets its owner.

Discovery runs at the first question and again when one of its environment variables has changed;
`refresh()` forces it. No library is loaded here.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pjrt_bridge.registry import sources
from pjrt_bridge.registry.hooks import Hooks
from pjrt_bridge.registry.sources import BRIDGE_VARIABLE, JAX_VARIABLE, Finding, SourceKind
from pjrt_bridge.registry.spec import PluginSpec


@dataclass(frozen=True)
class PluginInfo:
    """One plugin as discovery found it; `str()` is its line in a listing.

    Attributes:
        name: name to select it by.
        source: where it comes from, in words.
        library: absolute path of the library; None for an address, or where it is not known.
        priority: the available plugin of the highest priority that has a device is the default.
        available: whether it can be selected. The library itself is not loaded to find out.
        reason: why it is unavailable.
        spec: what it takes to load it; None for a failed source.
        conflict: the name is claimed twice by equal sources, so that selecting it raises.
    """

    name: str
    source: str
    library: Path | None
    priority: int
    available: bool
    reason: str | None
    spec: PluginSpec | None
    conflict: bool = False

    @property
    def no_device(self) -> str | None:
        """Why there is nothing for an available plugin to run on; it compiles ahead of time."""
        return self.spec.no_device if self.available and self.spec is not None else None

    def __str__(self) -> str:
        state = "available" if self.available else f"unavailable: {self.reason}"
        if self.no_device is not None:
            state = f"no device: {self.no_device}"
        where = "" if self.library is None else f", {self.library}"
        return f"{self.name}: {state} (from {self.source}{where})"


@dataclass(frozen=True)
class Discovery:
    """One run of discovery and the variables that it was run with."""

    variables: Mapping[str, str]
    hooks: Hooks
    plugins: tuple[PluginInfo, ...]


_lock = threading.RLock()
_current: Discovery | None = None


def discover() -> Discovery:
    """What is installed and configured at the moment, discovered anew where that has changed."""
    global _current
    variables = {name: os.environ.get(name, "") for name in (BRIDGE_VARIABLE, JAX_VARIABLE)}
    with _lock:
        if _current is None or _current.variables != variables:
            importlib.invalidate_caches()
            hooks = Hooks()
            findings = [
                *sources.from_bridge_variable(variables[BRIDGE_VARIABLE]),
                *sources.from_jax_variable(variables[JAX_VARIABLE]),
                *sources.from_hooks(hooks),
                *sources.from_wheels(),
            ]
            _current = Discovery(variables, hooks, tuple(_resolve(findings)))
        return _current


def refresh() -> None:
    """Forget what was discovered, for example after a package was installed."""
    global _current
    with _lock:
        _current = None


def _resolve(findings: Sequence[Finding]) -> list[PluginInfo]:
    """Decide who owns each name; the default first, those without a device before the useless."""
    hooked = {_real_path(f) for f in findings if f.kind is SourceKind.ENTRY_POINT} - {None}
    # A package that speaks for a wheel's library replaces what was found in the wheel itself.
    kept = [
        finding
        for finding in findings
        if finding.kind is not SourceKind.VENDOR_WHEEL or _real_path(finding) not in hooked
    ]
    claims = Counter((finding.kind, finding.name) for finding in kept if finding.spec is not None)
    owners: dict[str, Finding] = {}
    for finding in kept:
        if finding.spec is not None:
            owners.setdefault(finding.name, finding)
    infos = [_info(finding, owners, claims[finding.kind, finding.name]) for finding in kept]
    return sorted(
        infos,
        key=lambda info: (not info.available, info.no_device is not None, -info.priority),
    )


def _real_path(finding: Finding) -> Path | None:
    return None if finding.library is None else finding.library.resolve()


def _info(finding: Finding, owners: Mapping[str, Finding], claims: int) -> PluginInfo:
    spec = finding.spec
    if spec is None:
        reason = finding.reason
        return PluginInfo(finding.name, finding.source, finding.library, 0, False, reason, None)
    owner = owners[finding.name]
    conflict = owner.kind is finding.kind and claims > 1
    if conflict:
        reason = f"{claims} plugins of equal standing claim the name {finding.name!r}"
    elif owner is not finding:
        reason = f"the name belongs to the plugin from {owner.source}"
    else:
        reason = missing(spec)
    return PluginInfo(
        name=finding.name,
        source=finding.source,
        library=spec.path,
        priority=spec.priority,
        available=reason is None,
        reason=reason,
        spec=spec,
        conflict=conflict,
    )


def missing(spec: PluginSpec) -> str | None:
    """Why the library of a specification cannot be there; None where it may be."""
    if spec.path is None or spec.path.is_file():
        return None
    return f"{spec.path} is no file" if spec.path.exists() else f"{spec.path} does not exist"


def plugins() -> list[PluginInfo]:
    """Every plugin that was found, usable or not, the default one first.

    Nothing is loaded, and no source that fails keeps the others from the list.
    """
    return list(discover().plugins)
