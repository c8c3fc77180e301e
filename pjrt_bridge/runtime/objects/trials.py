"""Trials: what a plugin does with host memory and with layouts, where nothing but trying tells.

Plugins differ in what they do with a layout that a caller asks for. Some reorder the elements;
XLA's CPU plugin copies them as they are and only labels the buffer. Nothing but the label can be
asked for, and a program reads what is there. So a program has to tell, once for each client: it
demands a column-major argument, and what comes out shows how the argument has to be put.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pjrt_bridge.errors import PjrtError, SignatureMismatch
from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.layout import Layout, LayoutHandling
from pjrt_bridge.runtime.objects.executable import Executable
from pjrt_bridge.runtime.transfers.host import ALIGNMENT, describe
from pjrt_bridge.stablehlo.program.program import Program

CompileProgram = Callable[[Program], Executable]
"""How the client compiles."""

# Without the counts views of a buffer could not be kept from a donation.
_NEEDED = (
    "Buffer_OpaqueDeviceMemoryDataPointer",
    "Buffer_IsOnCpu",
    "Buffer_IncreaseExternalReferenceCount",
    "Buffer_DecreaseExternalReferenceCount",
)


def shares_host_memory(client: ClientCore) -> bool:
    """Try whether the plugin uses aligned host memory in place, and lets it be read there."""
    api = client.api
    if not all(map(api.has, _NEEDED)):
        return False
    raw = np.zeros(2 * ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    aligned = describe(raw[start : start + ALIGNMENT])
    try:
        with Buffer.of_host(client, aligned, client.devices[0], share=True) as probe:
            with probe.held() as pointer:
                on_host = api.call("Buffer_IsOnCpu", buffer=pointer).is_on_cpu
            return bool(on_host) and probe.address == aligned.address
    except PjrtError:
        return False


_SAMPLE = np.arange(6, dtype=np.float32).reshape(2, 3)
_COLUMNS = Layout((0, 1))


def _program(parameter: str, result: str) -> Program:
    return Program.parse(
        f"func.func @main(%a: tensor<2x3xf32> {parameter}) -> (tensor<2x3xf32> {result}) "
        "{ return %a : tensor<2x3xf32> }"
    )


_BY_COLUMNS = '{mhlo.layout_mode = "{0,1}"}'


def find_layout_handling(client: ClientCore, compile: CompileProgram) -> LayoutHandling:
    """Try what a client's plugin does with elements that are to come into a custom layout."""
    host = describe(_SAMPLE)
    in_order = host.in_order(_COLUMNS.minor_to_major)
    try:
        with compile(_program(_BY_COLUMNS, "")) as executable:
            for way, given in (LayoutHandling.REORDERS, host), (LayoutHandling.LABELS, in_order):
                buffer = Buffer.of_host(
                    client, given, client.devices[0], share=False, layout=_COLUMNS, shape=host.shape
                )
                (seen,) = executable.execute([buffer])
                if np.array_equal(seen.to_numpy(), _SAMPLE):
                    return way
    except (PjrtError, SignatureMismatch):
        pass
    return LayoutHandling.NONE


def reads_in_memory_order(compile: CompileProgram) -> bool:
    """Try whether a plugin writes a buffer to the host in the order of its layout.

    The other way is row-major order whatever the layout. A plugin without custom layouts is taken
    to do the first.
    """
    try:
        with compile(_program("", _BY_COLUMNS)) as executable:
            (columns,) = executable(_SAMPLE)
            raw = columns.read_raw(_SAMPLE.shape)
    except PjrtError:
        return True
    return not np.array_equal(raw, _SAMPLE)
