"""Discovery: every source asked once, and the rules by which a name gets its owner.

Discovery runs at the first question and again when one of its environment variables has changed;
`refresh()` forces it. No library is loaded here.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pjrt_bridge import environment
from pjrt_bridge.registry import sources, trial
from pjrt_bridge.registry.hooks import Hooks
from pjrt_bridge.registry.sources import BRIDGE_VARIABLE, JAX_VARIABLE, Finding, SourceKind
from pjrt_bridge.registry.spec import PluginSpec
from pjrt_bridge.runtime import native


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
        vouched: a package's hook brought its library; others are tried before they are used.
        no_client: why a trial in another process got no client of it; None where it got one, or
            there was none.
    """

    name: str
    source: str
    library: Path | None
    priority: int
    available: bool
    reason: str | None
    spec: PluginSpec | None
    conflict: bool = False
    vouched: bool = False
    no_client: str | None = None

    @property
    def no_device(self) -> str | None:
        """Why there is nothing for an available plugin to run on."""
        if not self.available or self.spec is None:
            return None
        return self.no_client if self.spec.no_device is None else self.spec.no_device

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
    """Discover what is installed and configured, anew where that has changed.

    Raises:
        VariableError: an environment variable of the bridge has an impossible value.
    """
    global _current
    for switch in (environment.BACKGROUND_VARIABLE, trial.VARIABLE):
        environment.is_off(switch)
    native.is_unwanted()
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
    vouching = {_real_path(f) for f in findings if f.kind is SourceKind.ENTRY_POINT and f.spec}
    return _sorted(
        replace(info, vouched=True)
        if info.library is not None and info.library.resolve() in vouching
        else info
        for info in infos
    )


def _sorted(infos: Iterable[PluginInfo]) -> list[PluginInfo]:
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


def is_vouched(library: Path) -> bool:
    """Whether a package's hook has brought a library."""
    real = library.resolve()
    return any(
        info.vouched and info.library is not None and info.library.resolve() == real
        for info in discover().plugins
    )


def plugins(*, try_unknown: bool = False) -> list[PluginInfo]:
    """Every plugin that was found, usable or not, the default one first.

    No library is loaded into this process, and no source that fails keeps the others from the list.

    Args:
        try_unknown: plugins that nobody vouches for, and of which nothing is known, are tried now
            in another process, which takes seconds for each; else they are taken for usable.
    """
    return _sorted(_as_tried(info, now=try_unknown) for info in discover().plugins)


def is_untried(info: PluginInfo) -> bool:
    """Whether a plugin is to be tried, and what will come of it is not known."""
    spec = info.spec
    if spec is None or not info.available or not trial.applies(spec, vouched=info.vouched):
        return False
    return trial.known(spec, spec.options) is None


def _as_tried(info: PluginInfo, *, now: bool) -> PluginInfo:
    spec = info.spec
    if spec is None or not info.available or not trial.applies(spec, vouched=info.vouched):
        return info
    found = (trial.outcome if now else trial.known)(spec, spec.options)
    if found is None or found.fate == "good":
        return info
    reason = found.reason or found.ended
    if found.stage == "load":
        return replace(info, available=False, reason=reason)
    return replace(info, no_client=reason)
