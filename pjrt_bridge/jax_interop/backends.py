"""`register`: the plugins that the bridge finds, as backends of JAX."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial

from pjrt_bridge import registry, user_warnings
from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import (
    OptionError,
    PjrtBridgeError,
    RegistrationError,
)
from pjrt_bridge.jax_interop import compat, linear_algebra, tables
from pjrt_bridge.jax_interop.lapack import code_without_lapack
from pjrt_bridge.registry import PluginInfo
from pjrt_bridge.registry.registry import PluginLike
from pjrt_bridge.runtime.core.create_options import check_client_options

SUFFIX = "_pjrt"
"""Behind the name of a plugin whose own name means something else to JAX: `cpu_pjrt`."""

_lock = threading.Lock()
_registered: dict[int, str] = {}
"""Name of the backend that was made for each table, by the table's address."""


def register(
    plugins: Sequence[PluginLike] | None = None,
    *,
    options: Mapping[str, Mapping[str, NamedValue]] | None = None,
) -> dict[str, str]:
    """Make plugins backends of JAX, with the priorities and create options of their specifications.

    JAX makes its backends when it is first asked for a device, so this comes before. A plugin that
    JAX found by itself keeps the backend that it has. JAX's default backend is the one of the
    highest priority; its own CPU backend has 0, as a specification has that says nothing.

    Args:
        plugins: names, as `pjrt_bridge.plugins()` lists them, paths, or specifications; by default
            every available one that has a device, where those that cannot be loaded are left out
            with a warning.
        options: client create options for a plugin by its name; they replace those of the
            specification one by one.

    Returns:
        For each plugin the name of its backend, for `jax.devices(name)` and `JAX_PLATFORMS`: the
        plugin's own, or with `_pjrt` behind it where JAX has a platform of that name.

    Raises:
        RegistrationError: JAX is missing or of an unknown kind, or has made its backends already; a
            table in memory without the compiled module.
        OptionError: options that a plugin does not have, or for a plugin that is not registered.
        PluginNotFound, PluginConflict, PluginLoadError, PluginIncompatible: of a plugin that was
            named.
    """
    if isinstance(plugins, str):
        raise OptionError(f"plugins: found {plugins!r}, expected a list of names")
    if plugins is None:
        found = registry.plugins(try_unknown=True)
        # JAX does not start at all where a backend of high priority has no device.
        infos = [info for info in found if info.available and info.no_device is None]
    else:
        infos = [registry.select(name) for name in plugins]
    given = dict(options or {})
    if unknown := sorted(given.keys() - {info.name for info in infos}):
        raise OptionError(
            f"options: found {unknown[0]!r}, expected one of "
            f"{', '.join(info.name for info in infos) or 'no plugins'}"
        )
    names: dict[str, str] = {}
    with _lock:
        for info in infos:
            try:
                names[info.name] = _register(info, given.get(info.name))
            except RegistrationError:
                raise
            except PjrtBridgeError as error:
                if plugins is not None or info.name in given:
                    raise
                user_warnings.warn(f"plugin {info.name!r} is no backend of JAX: {error}")
    return names


def _register(info: PluginInfo, options: Mapping[str, NamedValue] | None) -> str:
    spec = info.spec
    assert spec is not None  # Only a specification makes a plugin available.
    registry.check_client(info, options or {})
    plugin = registry.load(info)
    address = plugin.api.address
    present = _registered.get(address) or compat.tables().get(address)
    if present is not None:
        if options:
            raise RegistrationError(
                f"plugin {info.name!r} is JAX's backend {present!r} already; its options come too "
                "late"
            )
        return present
    checked = check_client_options(
        {**spec.options, **(options or {})}, plugin.option_types, plugin=info.name
    )
    if compat.started():
        raise RegistrationError(
            f"plugin {info.name!r} cannot become a backend of JAX, which has made its backends; "
            "call pjrt_bridge.jax_interop.register() before the first use of a device"
        )
    linear_algebra.complete_jax()
    taken = compat.platforms()
    name = info.name if info.name not in taken else info.name + SUFFIX
    if name in taken:
        raise RegistrationError(
            f"plugin {info.name!r}: JAX has platforms {info.name!r} and {name!r}"
        )
    library = spec.path is not None
    compat.add_backend(
        name,
        tables.table_for_jax(
            plugin.api,
            guarded=not library,
            rewrite=partial(code_without_lapack, version=plugin.stablehlo_version),
        ),
        priority=spec.priority,
        options=checked,
        profiled=library,
    )
    _registered[address] = name
    return name
