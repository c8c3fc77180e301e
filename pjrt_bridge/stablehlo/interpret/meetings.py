"""Collective operations kept apart, which the reference interpreter mixes up.

Processes meet at a channel. One that leaves a meeting and comes to the next at the same channel,
before the others have left the first, takes what belongs there. So each operation gets a channel of
its own; one that runs more than once has to be refused (`stablehlo.interpret.interpretable`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pjrt_bridge.stablehlo import bindings

_MEETING = frozenset(
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


def keep_apart(operations: Iterable[Any]) -> None:
    """Give each collective operation of a module a channel of its own."""
    meeting = (operation for operation in operations if operation.name in _MEETING)
    for channel, operation in enumerate(meeting, 1):
        _set_channel(operation, channel)


def _set_channel(operation: Any, number: int) -> None:
    b = bindings.load()
    name, kind, sign = "channel_handle", 0, -1
    attributes = operation.attributes
    if name in attributes:
        found = b.stablehlo.ChannelHandle(attributes[name])
        kind = found.channel_type
        # The sign says whether replicas meet, or partitions, too.
        sign = 1 if found.handle > 0 else -1
    text = f"#stablehlo.channel_handle<handle = {sign * number}, type = {kind}>"
    attributes[name] = b.ir.Attribute.parse(text, operation.context)
