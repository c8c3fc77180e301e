"""PluginCore: one loaded library (or API address), its checked table, its attributes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pjrt_bridge.abi import chain
from pjrt_bridge.abi.api import Api
from pjrt_bridge.abi.values import NamedValue, decode_named_values
from pjrt_bridge.errors import PjrtError
from pjrt_bridge.runtime.core.platforms import OptionType
from pjrt_bridge.runtime.ownership.signals import blocked
from pjrt_bridge.wrong_arguments import checked_methods


@checked_methods
class PluginCore:
    """A PJRT plugin that is loaded and initialized, as clients and topologies know it.

    `Plugin` adds what can be made with it.

    Attributes:
        name: as it was registered.
        library: path of the shared library, None for an API address.
        api: the checked function table.
        option_types: client options that it reads, with their types; None where none are stated.
        attributes: `PJRT_Plugin_Attributes`.
        extensions: the extension chain in the plugin's order.

    Raises:
        PjrtError: the plugin failed to initialize.
    """

    def __init__(
        self,
        api: Api,
        *,
        library: Path | None = None,
        option_types: Mapping[str, OptionType] | None = None,
    ) -> None:
        self.name = api.plugin
        self.library = library
        self.api = api
        self.option_types = option_types
        self.extensions: tuple[chain.Extension, ...] = chain.walk(
            api.extension_start, plugin=api.plugin
        )
        with blocked():
            api.call("Plugin_Initialize")
        self.attributes: Mapping[str, NamedValue] = _attributes(api)

    @property
    def api_version(self) -> tuple[int, int]:
        """(major, minor) of the PJRT C API that the plugin implements."""
        return self.api.version

    @property
    def stablehlo_version(self) -> str | None:
        """Newest StableHLO version that the plugin reads, such as "1.13.3"; None if unstated."""
        return self._version("stablehlo_current_version")

    @property
    def stablehlo_minimum(self) -> str | None:
        """Oldest StableHLO version that the plugin reads, such as "0.9.0"; None if unstated."""
        return self._version("stablehlo_minimum_version")

    def _version(self, attribute: str) -> str | None:
        version = self.attributes.get(attribute)
        if not isinstance(version, (tuple, list)):
            return None
        return ".".join(str(part) for part in version)

    def __repr__(self) -> str:
        version, where = ".".join(map(str, self.api_version)), self.library or hex(self.api.address)
        return f"<{type(self).__name__} {self.name!r}, PJRT API {version}, {where}>"


def _attributes(api: Api) -> dict[str, NamedValue]:
    try:
        found = api.call("Plugin_Attributes")
    except PjrtError:
        return {}
    return decode_named_values(found.attributes, found.num_attributes)
