"""Profiler: a table of its own behind the extension, and what the devices did as an XSpace."""

from __future__ import annotations

import ctypes
from typing import Any

from pjrt_bridge.abi.extension_structs import PROFILER_API, by_name
from pjrt_bridge.abi.implement import Implementation
from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge.profiling import xspace
from pjrt_bridge.timeline import Timeline
from pjrt_bridge_reference import timeline
from pjrt_bridge_reference.caller_arguments import invalid
from pjrt_bridge_reference.slots import ERRORS, OBJECTS, Slots
from pjrt_bridge_reference.version import PLATFORM

SLOTS = Slots()

# Errors of a profiler are of a type of their own; here they are kept with the others.
SLOTS["error_destroy"] = ERRORS.destroy
SLOTS["error_message"] = ERRORS.message
SLOTS["error_get_code"] = ERRORS.code


def add_to(table: Implementation) -> None:
    """Put the extension into a table's chain; its newest functions are left away."""
    size = PROFILER_API.size_needed("collect_data")
    api = table.function_table(PROFILER_API, SLOTS, size=size)
    table.add_extension(by_name("Profiler"), {}, profiler_api=api, traceme_context_id=-1)


class Session:
    """One profile: created, started, stopped, collected, destroyed.

    Attributes:
        data: the XSpace; None until the profile is stopped.
    """

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.timeline = Timeline()

    def stop(self) -> None:
        """End the recording."""
        timeline.stop(self.timeline)
        self.data = xspace.encode(f"/device:{PLATFORM}", self.timeline.spans)


@SLOTS.implements("create")
def _create(args: Any) -> None:
    # The options ask for details that an interpreter does not have.
    args.profiler = OBJECTS.add(Session())


@SLOTS.implements("destroy")
def _destroy(args: Any) -> None:
    if args.profiler:
        timeline.stop(OBJECTS.remove(args.profiler, Session).timeline)


@SLOTS.implements("start")
def _start(args: Any) -> None:
    timeline.start(OBJECTS.get(args.profiler, Session).timeline)


@SLOTS.implements("stop")
def _stop(args: Any) -> None:
    OBJECTS.get(args.profiler, Session).stop()


@SLOTS.implements("collect_data")
def _collect_data(args: Any) -> None:
    data = OBJECTS.get(args.profiler, Session).data
    if data is None:
        raise Status(ErrorCode.FAILED_PRECONDITION, "the profile was not stopped")
    if args.buffer:
        if args.buffer_size_in_bytes < len(data):
            raise invalid(f"{args.buffer_size_in_bytes} bytes, the profile has {len(data)}")
        ctypes.memmove(args.buffer, data, len(data))
    args.buffer_size_in_bytes = len(data)
