"""The PJRT_Api: every function of every module, in one table."""

from __future__ import annotations

import atexit
import ctypes
from functools import cache
from typing import Any

from pjrt_bridge.abi.functions import FUNCTIONS, SLOT, SLOTS_0_81, offset_of
from pjrt_bridge.abi.implement import Implementation, TableFunction
from pjrt_bridge_reference import (
    asynchronous_buffers,
    buffer,
    client,
    context,
    device,
    event,
    executable,
    execute,
    loaded,
    memory,
    plugin,
    topology,
    transfer,
)
from pjrt_bridge_reference.caller_arguments import unimplemented
from pjrt_bridge_reference.extensions import layouts, memory_descriptions, profiler, statistics
from pjrt_bridge_reference.slots import ERRORS
from pjrt_bridge_reference.version import API_VERSION

_MODULES = (
    buffer,
    client,
    context,
    device,
    event,
    executable,
    execute,
    loaded,
    memory,
    plugin,
    asynchronous_buffers,
    topology,
    transfer,
)
_OF_ERRORS = ("Error_Destroy", "Error_Message", "Error_GetCode")


def _unimplemented(name: str) -> TableFunction:
    def function(args: Any) -> None:
        raise unimplemented(f"PJRT_{name} is not implemented")

    return function


@cache
def table() -> Implementation:
    """The table, made at the first call; it lives as long as the process."""
    functions: dict[str, TableFunction] = {}
    for module in _MODULES:
        functions |= module.SLOTS
    # An error can be handled; a NULL in the middle of a table has to be looked for first.
    for name in list(FUNCTIONS)[:SLOTS_0_81]:
        if name not in functions and name not in _OF_ERRORS:
            functions[name] = _unimplemented(name)
    made = Implementation(functions, version=API_VERSION, errors=ERRORS)
    # The order of a chain means nothing; the last one that is added comes first.
    for extension in (statistics, memory_descriptions, profiler, layouts):
        extension.add_to(made)
    atexit.register(_retire, made)
    return made


def _retire(made: Implementation) -> None:
    """Let the functions that end objects do nothing from now on.

    Callers written in C++ end theirs when the interpreter is half gone, and a Python function that
    is called then ends the process. The memory goes with the process anyway.
    """
    # The C library's simplest function that takes what it is given and returns 0, which is success.
    nothing = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value
    for name in FUNCTIONS:
        if name.endswith("_Destroy") and SLOT[name] < SLOTS_0_81:
            ctypes.c_void_p.from_address(made.address + offset_of(name)).value = nothing
    # A thread may be inside a function now, or call another.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
