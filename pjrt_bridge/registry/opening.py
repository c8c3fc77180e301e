"""Loading the library of a specification, and what to install where it cannot be loaded."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pjrt_bridge.errors import PluginLoadError
from pjrt_bridge.registry.catalogue import BROUGHT_BY, BROUGHT_OTHERWISE
from pjrt_bridge.registry.spec import PluginSpec

if TYPE_CHECKING:
    from pjrt_bridge.runtime import Plugin

_lock = threading.Lock()
_by_address: dict[int, Plugin] = {}


def open_plugin(spec: PluginSpec) -> Plugin:
    """Load a plugin, once per process, without creating a client.

    The specification's environment variables are set first, unless the user has set them.

    Raises:
        PluginLoadError: the library cannot be loaded or exports no `GetPjrtApi`; the text names
            shared libraries that it needs and that are missing, with what brings them. Or the
            function that gives the address failed.
        PluginIncompatible: its API table cannot be used.
    """
    from pjrt_bridge.runtime import Plugin

    for name, value in spec.environment.items():
        os.environ.setdefault(name, value)
    if spec.path is not None:
        try:
            return Plugin.load(spec.path, name=spec.name, option_types=spec.option_types)
        except PluginLoadError as error:
            advice = _advice(error.missing)
            if not advice:
                raise
            raise PluginLoadError(f"{error}; {advice}", missing=error.missing) from error
    address = spec.table_address()
    with _lock:
        found = _by_address.get(address)
        if found is None:
            found = _by_address[address] = Plugin.from_address(
                address, name=spec.name, option_types=spec.option_types
            )
        return found


def _advice(missing: Iterable[str]) -> str:
    """What to install for shared libraries, where that is known."""
    wheels = _bringing(BROUGHT_BY, missing)
    quoted = (f"'{wheel}'" if "=" in wheel else wheel for wheel in wheels)
    steps = [f"pip install {' '.join(quoted)}"] if wheels else []
    steps += [f"install {other}" for other in _bringing(BROUGHT_OTHERWISE, missing)]
    return "; ".join(steps)


def _bringing(table: Mapping[str, str], missing: Iterable[str]) -> list[str]:
    """The packages that bring the libraries, each once."""
    found = (
        package for name in missing for start, package in table.items() if name.startswith(start)
    )
    return list(dict.fromkeys(found))
