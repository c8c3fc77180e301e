"""The way from a name to a client: which plugin is meant, and loading it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import OptionError, PluginConflict, PluginNotFound
from pjrt_bridge.registry import processes as spanning
from pjrt_bridge.registry import trial
from pjrt_bridge.registry.catalogue import INSTALL_BY_NAME, INSTALL_DEFAULT
from pjrt_bridge.registry.discovery import (
    PluginInfo,
    discover,
    is_untried,
    is_vouched,
    missing,
    plugins,
)
from pjrt_bridge.registry.opening import open_plugin
from pjrt_bridge.registry.sources import BRIDGE_VARIABLE
from pjrt_bridge.registry.spec import PluginSpec, checked_options, parse_reference
from pjrt_bridge.runtime import native
from pjrt_bridge.wrong_arguments import checked, wrong

if TYPE_CHECKING:
    from pjrt_bridge.runtime import Client, Plugin
    from pjrt_bridge.runtime.keyvalue import Processes

PluginLike = str | os.PathLike[str] | PluginSpec
"""How a plugin is named: a name, a path, `name:path`, or a specification."""


def select(plugin: PluginLike | None = None) -> PluginInfo:
    """The plugin that is meant.

    Args:
        plugin: a name that `plugins()` lists, a path, `name:path` or a specification. By default
            the one that `PJRT_BRIDGE_PLUGIN` names, else the available one of the highest
            priority that has a device.

    Raises:
        PluginNotFound: no such plugin, and the text lists all that were found; or it is
            unavailable, and the text says why.
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
    given: object = plugin
    if not isinstance(given, (str, os.PathLike, PluginSpec)):
        expected = "a name, a path, `name:path` or a PluginSpec"
        raise OptionError(wrong("plugin", given, expected))
    if not isinstance(plugin, PluginSpec):
        parsed = parse_reference(os.fspath(plugin), source="argument")
        if isinstance(parsed, str):
            return _named(parsed)
        plugin = parsed
    reason = missing(plugin)
    if reason is not None:
        raise PluginNotFound(f"plugin {plugin.name!r}: {reason}")
    source = plugin.source or "argument"
    return PluginInfo(
        plugin.name,
        source,
        plugin.path,
        plugin.priority,
        True,
        None,
        plugin,
        vouched=plugin.path is not None and is_vouched(plugin.path),
    )


def _default() -> PluginInfo:
    tried: set[str] = set()
    while True:
        found = plugins()
        if not found or not found[0].available or found[0].no_device is not None:
            raise PluginNotFound(f"no plugin is available{_listing(found)}")
        first = found[0]
        if first.name in tried or not is_untried(first):
            return first
        # What it is found to be may put another one into its place.
        tried.add(first.name)
        assert first.spec is not None  # Only a specification makes a record available.
        trial.outcome(first.spec, first.spec.options)


def _named(name: str, asked_by: str = "") -> PluginInfo:
    # What a trial found is no reason to refuse a name: whoever loads the plugin is told.
    candidates = [info for info in discover().plugins if info.name == name]
    for info in candidates:
        if info.available:
            return info
    conflicting = [info.source for info in candidates if info.conflict]
    if conflicting:
        raise PluginConflict(
            f"plugin {name!r}{asked_by} is claimed by {' and by '.join(conflicting)}; "
            f"uninstall one, or give the library: {BRIDGE_VARIABLE}={name}:/path/to/library.so"
        )
    if candidates:
        reason = candidates[0].reason
        raise PluginNotFound(f"plugin {name!r}{asked_by} is unavailable: {reason}")
    listing = _listing(plugins(), INSTALL_BY_NAME.get(name))
    raise PluginNotFound(f"plugin {name!r}{asked_by} was not found{listing}")


def _listing(found: Sequence[PluginInfo], brings: str | None = None) -> str:
    """What there is, and what to do.

    Args:
        found: the plugins that there are.
        brings: how to install the one that is wanted; None: nobody knows.
    """
    lines = [f"\n  {info}" for info in found] or ["\n  nothing was found"]
    if brings:
        advice = f"Install its package ({brings})"
    elif any(info.available for info in found):
        advice = "Name an available one"
    else:
        advice = f"Install a plugin package ({INSTALL_DEFAULT})"
    return (
        f":{''.join(lines)}\n"
        f"{advice}, or point {BRIDGE_VARIABLE} at a library that exports GetPjrtApi."
    )


def load(plugin: PluginLike | PluginInfo | None = None) -> Plugin:
    """Load a plugin's library, once per process, without creating a client.

    The specification's environment variables are set first, unless the user has set them.

    Raises:
        PluginLoadError: the library cannot be loaded or exports no `GetPjrtApi`.
        PluginIncompatible: its API table cannot be used.
        PluginNotFound: the library would end the process, as a trial in another one found; or as
            `select`.
        PluginConflict, OptionError: as `select`.
    """
    info, spec = _found(plugin)
    trial.check(spec, spec.options, vouched=info.vouched, stage="load")
    return open_plugin(spec)


def client(
    plugin: PluginLike | PluginInfo | None = None,
    /,
    *,
    processes: Processes | str | None = None,
    **options: NamedValue,
) -> Client:
    """A client of a plugin, shared by all callers that give the same options.

    Args:
        plugin: as `select` takes it, or one of `plugins()`.
        processes: the processes that the client is to span, each of which makes this call:
            "torchrun" where that started them, or any others with a store that they all see. By
            default the client is of this process alone.
        **options: client create options; they replace those of the specification one by one.

    Raises:
        PluginNotFound: the plugin's package says that this machine has no device for it, and why;
            the plugin would end the process, as a trial in another one found; or as `load`.
        OptionError: an option has a type that a plugin cannot take; the plugin's clients do not
            span processes, or nobody knows the processes by this name.
        PjrtError: what the plugin answered, for example that there is no such device, or that a
            process did not come in time.
        PluginConflict, PluginLoadError, PluginIncompatible: as `load`.
    """
    info, spec = _found(plugin)
    if spec.no_device is not None:
        raise PluginNotFound(
            f"plugin {spec.name!r} has no device on this machine: {spec.no_device}; "
            "pjrt_bridge.compile_for compiles for devices that are not there"
        )
    native.warn_where_missing()
    given = checked_options(options, where=f"client of plugin {spec.name!r}")
    wanted = {**spec.options, **given}
    if processes is None:
        trial.check(spec, wanted, vouched=info.vouched)
        made = open_plugin(spec).client(wanted)
    else:
        found = spanning.find(processes)
        wanted = {**spec.options, **spanning.options_for(spec, found), **given}
        # A client of a trial would wait for the other processes.
        trial.check(spec, spec.options, vouched=info.vouched, stage="load")
        made = open_plugin(spec).client(wanted, store=found.store)
    if not info.vouched:
        trial.prove(spec)
    return made


@checked
def check_client(info: PluginInfo, options: Mapping[str, NamedValue]) -> None:
    """Refuse a plugin whose client, made by somebody else in this process, would end it.

    Raises:
        PluginNotFound: a trial in another process died or hung.
    """
    assert info.spec is not None  # Only a specification makes a record available.
    trial.check(info.spec, {**info.spec.options, **options}, vouched=info.vouched)


def _found(plugin: PluginLike | PluginInfo | None) -> tuple[PluginInfo, PluginSpec]:
    # A record that is unavailable is selected by its name again, for the error that explains it.
    if isinstance(plugin, PluginInfo):
        info = plugin if plugin.spec is not None and plugin.available else select(plugin.name)
    else:
        info = select(plugin)
    assert info.spec is not None  # Only a specification makes a record available.
    return info, info.spec
