"""Accessor: the functions of one extension, each called only where the plugin has it.

An extension has no version at run time but the size of its struct, and plugins advertise
extensions with empty slots. So each function is checked when it is first called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from pjrt_bridge.abi.api import PluginFunction
from pjrt_bridge.abi.chain import Extension
from pjrt_bridge.abi.extension_structs import ExtensionTable
from pjrt_bridge.abi.memory import MemoryMap
from pjrt_bridge.errors import DataError, ExtensionUnavailable
from pjrt_bridge.wrong_arguments import checked_methods, require_name

if TYPE_CHECKING:
    from pjrt_bridge.runtime import Client, Topology
    from pjrt_bridge.runtime.core.accessors import Extensible


@checked_methods
class Accessor:
    """The functions of one extension of a plugin, over one of its clients or topologies.

    `client.extension(cls)` makes it, and `topology.extension(cls)` where there is no device.

    A subclass states its table, and offers methods over `call`. A package brings its own through
    the hook `pjrt_bridge_extensions`; where the size of the struct is not all that tells the
    version of its extension, it overrides `check`.

    Attributes:
        TABLE: the struct and its functions.
        owner: the client or topology that was asked for it.
        link: where it is in the plugin's chain, and its size.

    Raises:
        ExtensionUnavailable: what `check` finds.
    """

    TABLE: ClassVar[ExtensionTable]

    def __init__(self, owner: Extensible, link: Extension) -> None:
        self.owner = owner
        self.link = link
        self._entries: dict[str, PluginFunction] = {}
        self.check()

    @classmethod
    def find(cls, owner: Extensible) -> Self:
        """The accessor over the plugin of a client or topology.

        Raises:
            ExtensionUnavailable: the plugin's chain has no extension of this type, or `check`
                refuses the one it has.
        """
        for link in owner.extensions:
            if link.type == cls.TABLE.type:
                return cls(owner, link)
        offered = ", ".join(link.name for link in owner.extensions) or "none"
        raise ExtensionUnavailable(
            f"plugin {owner.plugin.name!r} does not offer the extension {cls.TABLE.name} "
            f"(type {cls.TABLE.type}); it offers {offered}",
            extension=cls.TABLE.name,
        )

    @property
    def client(self) -> Client:
        """The client that was asked for the extension.

        Raises:
            DataError: it was a topology; what needs this needs devices.
        """
        from pjrt_bridge.runtime import Client

        if isinstance(self.owner, Client):
            return self.owner
        raise DataError(
            f"this function of the extension {self.TABLE.name} needs a client; "
            f"{self.owner!r} only describes devices"
        )

    def topology(self, given: Topology | None = None) -> Topology:
        """The topology that was asked for the extension, or that of the client; or the given one.

        Raises:
            DataError: the given one belongs to another plugin.
            Unimplemented: the client tells no topology.
        """
        from pjrt_bridge.runtime import Topology

        if given is None:
            return self.owner if isinstance(self.owner, Topology) else self.client.topology
        # Plugins read foreign objects as if they were their own.
        if given.api is not self.owner.api:
            raise DataError(f"{given!r} belongs to another plugin than {self.owner!r}")
        return given

    def check(self) -> None:
        """Refuse an extension as a whole; by default only its functions are checked, each alone.

        Raises:
            ExtensionUnavailable: it is of a version that this class does not know.
        """

    def offers(self, function: str) -> bool:
        """Whether the plugin has a function: its struct reaches so far, and the slot is filled.

        Raises:
            ArgumentError: the extension has no function of this name.
        """
        return self._missing(function) is None

    def offered(self) -> tuple[str, ...]:
        """The functions that the plugin has, in the order of the table."""
        return tuple(filter(self.offers, self.TABLE.functions))

    def call(self, function: str, **values: Any) -> Any:
        """Call a function; give its args struct back, with the outputs filled.

        Values are those of `Api.call`.

        Raises:
            ExtensionUnavailable: the plugin's struct is too old for it, or its slot is empty.
            PjrtError: what the plugin returned.
            Closed: the client or topology was closed.
        """
        entry = self._entries.get(function) or self._resolve(function)
        with self.owner.handle.held():
            return self.owner.api.invoke(entry, f"{self.TABLE.name}_{function}", values)

    def pointer(self, field: str) -> int | None:
        """What a pointer of the extension's struct holds, e.g. a function or a table of them."""
        fields = [known.name for known in self.TABLE.struct.fields]
        require_name(field, fields, f"field of the extension {self.TABLE.name}")
        return self.link.pointer(self.TABLE.struct.offset(field))

    def _resolve(self, function: str) -> PluginFunction:
        missing = self._missing(function)
        if missing is not None:
            raise missing
        pointer = self.pointer(function)
        args = self.TABLE.functions[function]
        assert pointer is not None
        assert args is not None
        entry = self._entries[function] = self.owner.api.entry(
            pointer, args, void=function in self.TABLE.void
        )
        return entry

    def _missing(self, function: str) -> ExtensionUnavailable | None:
        require_name(function, self.TABLE.functions, f"function of the extension {self.TABLE.name}")
        found, needed = self.link.struct_size, self.TABLE.size_needed(function)
        pointer = self.pointer(function)
        if found < needed:
            why = f"is too old for it: found {found} bytes, needs {needed}"
        elif pointer is None:
            why = "leaves its slot empty"
        elif (memory := MemoryMap.now()) is not None and not memory.allows(pointer, 1, "x"):
            why = f"has {pointer:#x} in its slot, which is no code"
        else:
            return None
        return ExtensionUnavailable(
            f"plugin {self.owner.plugin.name!r} does not offer {self.TABLE.name}_{function}: its "
            f"extension {why}",
            extension=self.TABLE.name,
            function=function,
            found=found,
            needed=needed,
        )
