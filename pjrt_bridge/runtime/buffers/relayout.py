"""Custom layouts: host arrays into buffers of another order of elements.

`pjrt_bridge.runtime.objects.trials` tries what plugins do with such a layout.
"""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge.errors import DataError, ErrorCode, PjrtError, ProgramError
from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.device import Device, Memory
from pjrt_bridge.runtime.core.layout import Layout, LayoutHandling
from pjrt_bridge.runtime.transfers.host import HostArray
from pjrt_bridge.stablehlo.types import Parameter, Result
from pjrt_bridge.wrong_arguments import wrong


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
    if not isinstance(layout, (list, tuple)) or any(type(item) is not int for item in layout):
        raise DataError(wrong("layout", layout, "a Layout, or a list of dimensions"))
    order = tuple(layout)
    if sorted(order) != list(range(rank)):
        raise DataError(f"layout: found {order}, expected an order of {rank} dimensions")
    return order


def put(
    client: ClientCore,
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
    if client.layout_handling is LayoutHandling.NONE:
        raise PjrtError.from_code(
            ErrorCode.UNIMPLEMENTED,
            f"layout {layout} of a buffer: {LayoutHandling.NONE.value}",
            plugin=client.plugin.name,
            function="Client_BufferFromHostBuffer",
        )
    if client.layout_handling is LayoutHandling.REORDERS:
        if copy is False:
            return None
        return Buffer.of_host(client, host, device, memory, share=False, layout=layout)
    dense = host.in_order(order)
    share = copy is not True and client.shares_host_memory and dense.shareable
    if copy is False and not (share and dense.address == host.address):
        return None
    return Buffer.of_host(
        client, dense, device, memory, share=share, layout=layout, shape=host.shape
    )
