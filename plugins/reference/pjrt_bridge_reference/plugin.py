"""The first calls of every caller: initialization, and what the plugin says of itself."""

from __future__ import annotations

from functools import cache
from typing import Any

from pjrt_bridge.abi.implementation_objects import Keep
from pjrt_bridge.stablehlo import bindings
from pjrt_bridge_reference.slots import Slots

SLOTS = Slots()

_KEEP = Keep()


@SLOTS.implements("Plugin_Initialize")
def _initialize(args: Any) -> None:
    """There is nothing to set up; the call may come more than once."""


@cache
def _described() -> tuple[int, int]:
    # Callers write programs for the StableHLO version that is stated here. The bindings are loaded
    # by this call and not before: discovery must cost nothing.
    return _KEEP.named_values(
        {
            "xla_version": 0,
            "stablehlo_current_version": bindings.parse_version(bindings.current_version()),
            "stablehlo_minimum_version": bindings.parse_version(bindings.minimum_version()),
        }
    )


@SLOTS.implements("Plugin_Attributes")
def _attributes(args: Any) -> None:
    args.attributes, args.num_attributes = _described()
