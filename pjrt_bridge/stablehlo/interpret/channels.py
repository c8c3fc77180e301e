"""A channel of its own for each collective operation, which the reference interpreter needs.

The interpreter matches processes by channel. A process that finishes one collective operation and
reaches the next one of the same channel, before the others have finished the first, gets the data
of the first. Distinct channels prevent that; an operation that runs more than once has to be
refused (`pjrt_bridge.stablehlo.interpret.interpretable`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pjrt_bridge.stablehlo import bindings

_COLLECTIVES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather",
        "all_reduce",
        "all_to_all",
        "collective_broadcast",
        "collective_permute",
        "reduce_scatter",
    )
)


def assign_channels(operations: Iterable[Any]) -> None:
    """Give each collective operation of a module a channel of its own."""
    collectives = (operation for operation in operations if operation.name in _COLLECTIVES)
    for channel, operation in enumerate(collectives, 1):
        _set_channel(operation, channel)


def _set_channel(operation: Any, number: int) -> None:
    b = bindings.load()
    name, kind, sign = "channel_handle", 0, -1
    attributes = operation.attributes
    if name in attributes:
        found = b.stablehlo.ChannelHandle(attributes[name])
        kind = found.channel_type
        # A positive handle: groups name replicas and partitions, otherwise replicas alone.
        sign = 1 if found.handle > 0 else -1
    text = f"#stablehlo.channel_handle<handle = {sign * number}, type = {kind}>"
    attributes[name] = b.ir.Attribute.parse(text, operation.context)
