"""The way from a name to a client: which plugin is meant, and loading it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import PluginConflict, PluginNotFound
from pjrt_bridge.registry.catalogue import INSTALL_DEFAULT
from pjrt_bridge.registry.discovery import PluginInfo, discover, missing, plugins
from pjrt_bridge.registry.sources import BRIDGE_VARIABLE
from pjrt_bridge.registry.spec import PluginSpec, checked_options, parse_reference

if TYPE_CHECKING:
    from pjrt_bridge.runtime import Client, Plugin

PluginLike = str | os.PathLike[str] | PluginSpec
"""How a plugin is named: a name, a path, `name:path`, or a specification."""

_lock = threading.Lock()
_by_address: dict[int, Plugin] = {}


def select(plugin: PluginLike | None = None) -> PluginInfo:
    """The plugin that is meant.

    Args:
        plugin: a name that `plugins()` lists, a path, `name:path` or a specification. By default
            the one that `PJRT_BRIDGE_PLUGIN` names, else the available one of the highest
            priority that has a device.

    Raises:
        PluginNotFound: no such plugin, or it is unavailable; the text lists what was found and
            why each of it cannot be used.
        PluginConflict: several packages claim the name.
        OptionError: a reference that cannot be read.
    """
    if plugin is None:
        variable = discover().variables[BRIDGE_VARIABLE].strip()
        if not variable:
            return _default()
        # Discovery has made a plugin of a path in this variable, so its name is enough.
        parsed = parse_reference(variable, source=BRIDGE_VARIABLE)
        name = parsed if isinstance(parsed, str) else parsed.name
        return _named(name, f" (asked for by {BRIDGE_VARIABLE})")
    if not isinstance(plugin, PluginSpec):
        parsed = parse_reference(os.fspath(plugin), source="argument")
        if isinstance(parsed, str):
            return _named(parsed)
        plugin = parsed
    reason = missing(plugin)
    if reason is not None:
        raise PluginNotFound(f"plugin {plugin.name!r}: {reason}")
    source = plugin.source or "argument"
    return PluginInfo(plugin.name, source, plugin.path, plugin.priority, True, None, plugin)


def _default() -> PluginInfo:
    found = plugins()
    if not found or not found[0].available or found[0].no_device is not None:
        raise PluginNotFound(f"no plugin is available{_listing(found)}")
    return found[0]


def _named(name: str, asked_by: str = "") -> PluginInfo:
    found = plugins()
    candidates = [info for info in found if info.name == name]
    for info in candidates:
        if info.available:
            return info
    conflicting = [info.source for info in candidates if info.conflict]
    if conflicting:
        raise PluginConflict(
            f"plugin {name!r}{asked_by} is claimed by {' and by '.join(conflicting)}; "
            f"uninstall one, or give the library: {BRIDGE_VARIABLE}={name}:/path/to/library.so"
        )
    state = "is unavailable" if candidates else "was not found"
    raise PluginNotFound(f"plugin {name!r}{asked_by} {state}{_listing(found)}")


def _listing(found: Sequence[PluginInfo]) -> str:
    lines = [f"\n  {info}" for info in found] or ["\n  nothing was found"]
    return (
        f":{''.join(lines)}\n"
        f"Install a plugin package ({INSTALL_DEFAULT}), or point "
        f"{BRIDGE_VARIABLE} at a library that exports GetPjrtApi."
    )


def load(plugin: PluginLike | PluginInfo | None = None) -> Plugin:
    """Load a plugin's library, once per process, without creating a client.

    The specification's environment variables are set first, unless the user has set them.

    Raises:
        PluginLoadError: the library cannot be loaded or exports no `GetPjrtApi`.
        PluginIncompatible: its API table cannot be used.
        PluginNotFound, PluginConflict, OptionError: as `select`.
    """
    from pjrt_bridge.runtime import Plugin

    spec = _spec(plugin)
    for name, value in spec.environment.items():
        os.environ.setdefault(name, value)
    if spec.path is not None:
        return Plugin.load(spec.path, name=spec.name, option_types=spec.option_types)
    assert spec.address is not None  # PluginSpec holds one of the two.
    with _lock:
        found = _by_address.get(spec.address)
        if found is None:
            found = _by_address[spec.address] = Plugin.from_address(
                spec.address, name=spec.name, option_types=spec.option_types
            )
        return found


def client(plugin: PluginLike | PluginInfo | None = None, /, **options: NamedValue) -> Client:
    """A client of a plugin, shared by all callers that give the same options.

    Args:
        plugin: as `select` takes it, or one of `plugins()`.
        **options: client create options; they replace those of the specification one by one.

    Raises:
        PluginNotFound: the plugin's package says that this machine has no device for it, and why;
            or as `load`.
        OptionError: an option has a type that a plugin cannot take.
        PjrtError: what the plugin answered, for example that there is no such device.
        PluginConflict, PluginLoadError, PluginIncompatible: as `load`.
    """
    spec = _spec(plugin)
    if spec.no_device is not None:
        raise PluginNotFound(
            f"plugin {spec.name!r} has no device on this machine: {spec.no_device}; "
            "pjrt_bridge.compile_for compiles for devices that are not there"
        )
    given = checked_options(options, where=f"client of plugin {spec.name!r}")
    return load(spec).client({**spec.options, **given})


def _spec(plugin: PluginLike | PluginInfo | None) -> PluginSpec:
    # A record that is unavailable is selected by its name again, for the error that explains it.
    if isinstance(plugin, PluginInfo):
        plugin = plugin.spec if plugin.available else plugin.name
    spec = select(plugin).spec
    assert spec is not None  # Only a specification makes a record available.
    return spec
