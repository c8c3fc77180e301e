"""PJRT_ExecuteContext: what a caller may hand to an execution; nothing here reads it."""

from __future__ import annotations

from typing import Any

from pjrt_bridge_reference.slots import OBJECTS, Slots

SLOTS = Slots()


class ExecuteContext:
    """An execute context."""


@SLOTS.implements("ExecuteContext_Create")
def _create(args: Any) -> None:
    args.context = OBJECTS.add(ExecuteContext())


@SLOTS.implements("ExecuteContext_Destroy")
def _destroy(args: Any) -> None:
    if args.context:
        OBJECTS.remove(args.context, ExecuteContext)
