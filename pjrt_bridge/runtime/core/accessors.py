"""Extensible: clients and topologies, which can be asked for extensions."""

from __future__ import annotations

from typing import Protocol, Self, TypeVar, cast

from pjrt_bridge.abi.api import Api
from pjrt_bridge.abi.chain import Extension
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import OptionError, UnsupportedDtype
from pjrt_bridge.runtime.core.plugin_core import PluginCore
from pjrt_bridge.runtime.ownership.handles import Handle
from pjrt_bridge.wrong_arguments import checked_methods, wrong


class AccessorLike(Protocol):
    """The functions of one extension."""

    @classmethod
    def find(cls, owner: Extensible) -> Self:
        """The accessor over the plugin of a client or topology."""


AccessorT = TypeVar("AccessorT", bound=AccessorLike)


@checked_methods
class Extensible:
    """An object of a plugin that can be asked for extensions.

    Attributes:
        plugin: the plugin.
        api: the plugin's function table.
        handle: the plugin's object; pinned while a function of an extension runs.
    """

    handle: Handle

    def __init__(self, plugin: PluginCore) -> None:
        self.plugin = plugin
        self.api: Api = plugin.api
        self._accessors: dict[type[AccessorLike], AccessorLike] = {}

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """The plugin's extension chain, in its own order, unknown types included."""
        return self.plugin.extensions

    def extension(self, accessor: type[AccessorT]) -> AccessorT:
        """What the plugin offers of an extension; the same object each time.

        Args:
            accessor: a class of `pjrt_bridge.extensions`, or of a package that brings its own.

        Raises:
            ExtensionUnavailable: the plugin does not have it, or not in a version that is known.
            OptionError: no such class.
        """
        if not isinstance(accessor, type) or not callable(getattr(accessor, "find", None)):
            raise OptionError(wrong("extension", accessor, "a class of pjrt_bridge.extensions"))
        found = self._accessors.get(accessor)
        if found is None:
            found = self._accessors[accessor] = accessor.find(self)
        return cast(AccessorT, found)

    def check_dtype(self, dtype: DType) -> None:
        """Refuse element types that are newer than the plugin, which would crash on them.

        Raises:
            UnsupportedDtype: the plugin's API version does not know the type.
        """
        if self.api.version[1] < dtype.since:
            raise UnsupportedDtype(
                f"{dtype} came with PJRT API 0.{dtype.since}; plugin {self.plugin.name!r} "
                f"implements 0.{self.api.version[1]}"
            )
