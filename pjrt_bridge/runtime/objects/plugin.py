"""Plugin: how a library is loaded, and the clients and topologies that are made with it."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pjrt_bridge.abi.api import Api
from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import OptionError, PluginLoadError
from pjrt_bridge.runtime.core.create_options import check_client_options
from pjrt_bridge.runtime.core.platforms import OptionType
from pjrt_bridge.runtime.core.plugin_core import PluginCore
from pjrt_bridge.runtime.keyvalue import KeyValueStore, Prefixed, check_store
from pjrt_bridge.runtime.objects.client import Client
from pjrt_bridge.runtime.objects.library import open_library
from pjrt_bridge.runtime.objects.topology import Topology
from pjrt_bridge.wrong_arguments import checked_methods

_lock = threading.Lock()
_loaded: dict[Path, Plugin] = {}


def _start_again_in_child() -> None:
    # Another thread of the parent may have held it at the moment of the fork.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_start_again_in_child)


@checked_methods
class Plugin(PluginCore):
    """A PJRT plugin that is loaded and initialized.

    Make one with `Plugin.load` or `Plugin.from_address`. A library stays loaded until the process
    ends, because plugins start threads that cannot be stopped. What is known of a plugin is
    described in `PluginCore`.
    """

    def __init__(
        self,
        api: Api,
        *,
        library: Path | None = None,
        option_types: Mapping[str, OptionType] | None = None,
    ) -> None:
        super().__init__(api, library=library, option_types=option_types)
        self._clients: dict[tuple[Any, ...], Client] = {}
        self._clients_lock = threading.Lock()

    @staticmethod
    def load(
        library: str | os.PathLike[str],
        *,
        name: str,
        option_types: Mapping[str, OptionType] | None = None,
    ) -> Plugin:
        """Load a shared library that exports `GetPjrtApi`; the same file is loaded once.

        Args:
            library: path of the shared library.
            name: what to call it.
            option_types: the client options that the plugin reads, with their types; stating them
                lets the bridge refuse unknown names, which plugins accept without an error.

        Raises:
            PluginLoadError: no such file, not a loadable library, or no `GetPjrtApi` in it.
            PluginIncompatible: its API table cannot be used.
            PjrtError: the plugin failed to initialize.
        """
        try:
            path = Path(library).resolve()
        except (OSError, TypeError, ValueError, RuntimeError) as error:
            raise PluginLoadError(f"plugin {name!r}: {library!r} is no path: {error}") from error
        with _lock:
            found = _loaded.get(path)
            if found is None:
                found = _loaded[path] = Plugin(
                    open_library(path, name), library=path, option_types=option_types
                )
            elif found.option_types is None:
                found.option_types = option_types
            return found

    @staticmethod
    def from_address(
        address: int,
        *,
        name: str,
        keepalive: object = None,
        option_types: Mapping[str, OptionType] | None = None,
    ) -> Plugin:
        """Use a `PJRT_Api` that is in memory already; `keepalive` is held as long as the plugin.

        Raises:
            PluginIncompatible: there is no usable API table at the address.
            PjrtError: the plugin failed to initialize.
        """
        return Plugin(Api(address, plugin=name, keepalive=keepalive), option_types=option_types)

    def client(
        self,
        options: Mapping[str, Any] | None = None,
        *,
        store: KeyValueStore | None = None,
    ) -> Client:
        """The client with these create options; made once for each set of options, and store.

        One that was closed, or lost (`ClientLost`), is followed by another.

        Args:
            options: create options.
            store: what the processes see that the client is to span. The plugin's keys begin with
                its name and the number of clients that a process of this `node_id` made before on
                the store, so none reads what was meant for another client.

        Raises:
            OptionError: an option that the plugin would abort on, or does not declare; no store.
            ForkedProcess: this process was forked after the plugin was loaded.
            PjrtError: the plugin could not create the client (no such device, ...).
        """
        # Before the lock, which another thread may have held at the moment of the fork.
        self.api.check_process()
        checked = check_client_options(
            {} if options is None else options, self.option_types, plugin=self.name
        )
        if store is not None:
            check_store(store, f"store of a client of plugin {self.name!r}")
        given = tuple(
            (name, type(value).__name__, tuple(value) if isinstance(value, list) else value)
            for name, value in sorted(checked.items())
        )
        key = (None if store is None else id(store), given)
        with self._clients_lock:
            found = self._clients.get(key)
            if found is None or found.closed or found.lost is not None:
                own = None if store is None else self._part_of(store, checked.get("node_id", 0))
                found = self._clients[key] = Client(self, checked, store=own)
            return found

    def _part_of(self, store: KeyValueStore, node: object) -> KeyValueStore:
        """The keys of a store that no process of this number has used before.

        The store counts, and not this process, which may have been started anew.
        """
        try:
            parts = (Prefixed(store, f"{self.name}/{number}") for number in itertools.count())
            own = next(part for part in parts if part.try_get(f"process {node}") is None)
            own.put(f"process {node}", b"")
        except Exception as error:
            raise OptionError(
                f"store of a client of plugin {self.name!r}, process {node}: found no place in it: "
                f"{type(error).__name__}: {error}"
            ) from error
        return own

    def topology(self, name: str, **options: NamedValue) -> Topology:
        """Devices by their description, to compile for them where they are not.

        Args:
            name: the plugin's name of the topology, such as "v5e:2x2".
            **options: create options of the topology, as the plugin defines them.

        Raises:
            OptionError: an empty name, or an option that the plugin would abort on.
            ForkedProcess: this process was forked after the plugin was loaded.
            Unimplemented: the plugin knows no topologies but those of its clients.
            PjrtError: the plugin does not know this one.
        """
        return Topology.create(self, name, options)
