"""Results of executions: looked at before anything follows what a plugin gave.

As `pjrt_bridge.runtime.dispatch.arguments` stands before an execution, this stands behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt_bridge.errors import PjrtBridgeError, PluginIncompatible
from pjrt_bridge.runtime.objects.buffer import Buffer
from pjrt_bridge.runtime.objects.device import Device
from pjrt_bridge.runtime.ownership.handles import Handle
from pjrt_bridge.runtime.transfers.layout import Layout
from pjrt_bridge.stablehlo.types import Result, TensorType

if TYPE_CHECKING:
    from pjrt_bridge.runtime.objects.client import Client

# Layout, custom layout and dynamic, as `Buffer` has them.
_Form = tuple[Layout, tuple[int, ...] | None, bool]


class Results:
    """What an executable gives, as buffers.

    Args:
        client: of the executable.
        name: of the executable, for messages.
        declared: results as the program has them.

    Attributes:
        types: shapes (per device) and types.
    """

    def __init__(
        self, client: Client, name: str, declared: Sequence[Result], types: Sequence[TensorType]
    ) -> None:
        self._client = client
        self._name = name
        self._declared = declared
        self.types = types
        self._forms: tuple[_Form, ...] | None = None

    def look_at(
        self, rows: Sequence[Sequence[int | None]], ends: Sequence[int | None], loaded: Handle
    ) -> None:
        """See that everything is there that an execution gives; else give all of it back.

        Args:
            rows: for each device a PJRT_Buffer for each result.
            ends: for each device a PJRT_Event of the end, where they were asked for.
            loaded: the executable, pinned.

        Raises:
            PluginIncompatible: a result or an event is missing.
            PjrtError: the plugin does not say how its results lie.
        """
        client = self._client
        try:
            if None in ends or any(None in row for row in rows):
                raise PluginIncompatible(
                    f"plugin {client.plugin.name!r}: LoadedExecutable_Execute of {self._name!r} "
                    "succeeded without all results and events"
                )
            if self._forms is None:
                self._forms = tuple(map(self._form, rows[0], self._declared))
        except PjrtBridgeError:
            for pointer in (pointer for row in rows for pointer in row if pointer):
                owned = Handle(client.api, "Buffer", pointer, client.handle, argument="buffer")
                owned.running = True
                owned.release()
            for end in ends:
                loaded.outlive(end)
            raise

    def _form(self, pointer: int | None, result: Result) -> _Form:
        """What all buffers of one result have in common; only the first one is asked."""
        client = self._client
        layout = Layout.of_buffer(client.api, pointer, result.type.rank, asked=result.layout)
        # Only the plugin knows what became of mhlo.layout_mode = "auto".
        order = layout.minor_to_major if client.shares_host_memory else result.layout
        return layout, client.custom_layout(order), bool(result.dynamic)

    def wrap(self, row: Sequence[int | None], device: Device) -> tuple[Buffer, ...]:
        """The results on one device, which were looked at."""
        assert self._forms is not None
        made = zip(row, self.types, self._forms, strict=True)
        return tuple(
            [Buffer(self._client, pointer, type, device, *form) for pointer, type, form in made]
        )
