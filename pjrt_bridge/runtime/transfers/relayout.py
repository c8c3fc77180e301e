"""Custom layouts: host arrays into buffers of another order of elements, and back.

Plugins differ in what they do with a layout that a caller asks for. Some reorder the elements;
XLA's CPU plugin copies them as they are and only labels the buffer. Nothing but the label can be
asked for, and a program reads what is there. So a program has to tell, once for each client: it
demands a column-major argument, and what comes out shows how the argument has to be put.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from pjrt_bridge.errors import DataError, ErrorCode, PjrtError, ProgramError, SignatureMismatch
from pjrt_bridge.runtime.objects.buffer import Buffer
from pjrt_bridge.runtime.objects.device import Device, Memory
from pjrt_bridge.runtime.transfers.host import HostArray, describe
from pjrt_bridge.runtime.transfers.layout import Layout
from pjrt_bridge.runtime.transfers.transfer import transfer
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import Parameter, Result

if TYPE_CHECKING:
    from pjrt_bridge.runtime.objects.client import Client


class Placement(Enum):
    """What a plugin does with host elements and the layout that it is asked for."""

    REORDERS = "it brings the elements into the order of the layout"
    LABELS = "it copies the elements as they are, so they have to come in the layout's order"
    NONE = "no program can read an argument in another layout than the default"


_SAMPLE = np.arange(6, dtype=np.float32).reshape(2, 3)
_COLUMNS = Layout((0, 1))


def _program(parameter: str, result: str) -> Program:
    return Program.parse(
        f"func.func @main(%a: tensor<2x3xf32> {parameter}) -> (tensor<2x3xf32> {result}) "
        "{ return %a : tensor<2x3xf32> }"
    )


_BY_COLUMNS = '{mhlo.layout_mode = "{0,1}"}'


def find_placement(client: Client) -> Placement:
    """Try how a client's plugin places elements."""
    host = describe(_SAMPLE)
    in_order = host.in_order(_COLUMNS.minor_to_major)
    try:
        with client.compile(_program(_BY_COLUMNS, "")) as executable:
            for way, given in (Placement.REORDERS, host), (Placement.LABELS, in_order):
                buffer = _transfer(client, given, host.shape, client.devices[0], None, _COLUMNS)
                (seen,) = executable.execute([buffer])
                if np.array_equal(seen.to_numpy(), _SAMPLE):
                    return way
    except (PjrtError, SignatureMismatch):
        pass
    return Placement.NONE


def reads_in_memory_order(client: Client) -> bool:
    """Try whether a plugin writes a buffer to the host in the order of its layout.

    The other way is row-major order whatever the layout. A plugin without custom layouts is taken
    to do the first.
    """
    try:
        with client.compile(_program("", _BY_COLUMNS)) as executable:
            (columns,) = executable(_SAMPLE)
            raw = columns.read_raw(_SAMPLE.shape)
    except PjrtError:
        return True
    return not np.array_equal(raw, _SAMPLE)


def check_demand(value: Parameter | Result) -> None:
    """Refuse what compilers die of: a custom order of elements that are smaller than a byte.

    Raises:
        ProgramError: a parameter or result that demands it.
    """
    order = value.layout
    if order is not None and value.type.dtype.bits < 8 and not Layout(order).row_major:
        what = "parameter" if isinstance(value, Parameter) else "result"
        raise ProgramError(
            f"{what} {value.type}: mhlo.layout_mode {Layout(order)} of packed elements; XLA's "
            "compilers abort the process on it"
        )


def check_order(layout: Layout | Sequence[int], rank: int) -> tuple[int, ...]:
    """The minor-to-major order of a layout that a caller asks for.

    Raises:
        DataError: no permutation of the dimensions; tiles, which are the plugin's own.
    """
    if isinstance(layout, Layout):
        if layout.tiles or layout.rest:
            raise DataError(f"layout: found {layout}, expected an order such as {{0,1}} alone")
        layout = layout.minor_to_major
    order = tuple(layout)
    if sorted(order) != list(range(rank)):
        raise DataError(f"layout: found {order}, expected an order of {rank} dimensions")
    return order


def put(
    client: Client,
    host: HostArray,
    device: Device,
    memory: Memory | None,
    order: tuple[int, ...],
    *,
    copy: bool | None,
) -> Buffer | None:
    """A buffer in a minor-to-major order that is not the default.

    Shares host memory that lies in this order; None where it does not and `copy` is False.

    Raises:
        Unimplemented: the plugin's programs read no custom layouts.
        PjrtError: the plugin refused.
    """
    layout = Layout(order)
    if client.placement is Placement.NONE:
        raise PjrtError.from_code(
            ErrorCode.UNIMPLEMENTED,
            f"layout {layout} of a buffer: {Placement.NONE.value}",
            plugin=client.plugin.name,
            function="Client_BufferFromHostBuffer",
        )
    if client.placement is Placement.REORDERS:
        if copy is False:
            return None
        return _transfer(client, host, host.shape, device, memory, layout)
    dense = host.in_order(order)
    share = copy is not True and client.shares_host_memory and dense.shareable
    if copy is False and not (share and dense.address == host.address):
        return None
    return _transfer(client, dense, host.shape, device, memory, layout, share=share)


def _transfer(
    client: Client,
    host: HostArray,
    shape: tuple[int, ...],
    device: Device,
    memory: Memory | None,
    layout: Layout,
    *,
    share: bool = False,
) -> Buffer:
    return transfer(client, host, device, memory, share=share, layout=layout, shape=shape)
