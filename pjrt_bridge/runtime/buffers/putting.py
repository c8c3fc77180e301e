"""The steps of `Client.put`: host data or a buffer into a buffer at a place, in a layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt_bridge.errors import DataError
from pjrt_bridge.runtime.buffers import device_view, relayout
from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.device import Device, Memory
from pjrt_bridge.runtime.core.layout import Layout
from pjrt_bridge.runtime.transfers.host import ALIGNMENT, HostArray, describe

RequestedLayout = Layout | Sequence[int] | None


def put(
    client: ClientCore,
    data: Any,
    device: Device | None,
    memory: Memory | None,
    layout: RequestedLayout,
    copy: bool | None,
) -> Buffer:
    """A buffer of an array or of another buffer's elements; see `Client.put`."""
    if isinstance(data, Buffer):
        return _put_buffer(client, data, device, memory, layout, copy)
    place = client.place(device, memory)
    if layout is None and memory is None and device_view.is_on_device(client, data):
        return device_view.put(client, data, device, copy=copy)
    host = describe(data)
    order = _order(client, layout, len(host.shape))
    if order is None:
        made = _put(client, host, place, memory, copy)
    else:
        made = relayout.put(client, host, place, memory, order, copy=copy)
    # Plugins that cannot share an array copy it, and do not say so.
    if made is None or (copy is False and made.address != host.address):
        raise DataError(
            f"an array of {host.dtype} at address {host.address:#x} cannot be shared with "
            f"plugin {client.plugin.name!r}: it needs host memory that the plugin can use, "
            f"{'row-major' if order is None else Layout(order)} order, whole bytes, elements, and "
            f"{ALIGNMENT}-byte alignment"
        )
    return made


def put_host(
    client: ClientCore, host: HostArray, device: Device | None = None, *, writable: bool = False
) -> Buffer:
    """`put` for memory that is described already; see `Client.put_host`."""
    share = client.shares_host_memory and host.shareable
    return Buffer.of_host(client, host, device or client.devices[0], share=share, writable=writable)


def _put(
    client: ClientCore, host: HostArray, place: Device, memory: Memory | None, copy: bool | None
) -> Buffer | None:
    share = copy is not True and client.shares_host_memory and host.shareable
    if copy is False and not share:
        return None
    return Buffer.of_host(client, host, place, memory, share=share)


def _put_buffer(
    client: ClientCore,
    buffer: Buffer,
    device: Device | None,
    memory: Memory | None,
    layout: RequestedLayout,
    copy: bool | None,
) -> Buffer:
    if buffer.client is not client:
        raise DataError(f"{buffer!r} belongs to another client; bring it over with numpy.asarray")
    place = buffer.device
    if device is not None or memory is not None:
        place = client.place(device, memory)
    there = place is buffer.device and (memory is None or memory is buffer.memory)
    relaid = layout is not None and (
        buffer.dynamic or buffer.custom_layout != _order(client, layout, buffer.type.rank)
    )
    if there and not relaid and not copy:
        return buffer
    if copy is False:
        where = f"in the layout {layout}" if there else f"on {place!r}"
        raise DataError(f"{buffer!r} is not {where}, and copy=False forbids to bring it")
    if relaid or (layout is not None and buffer.custom_layout is not None):
        return put(client, buffer.to_numpy(), place, memory, layout, copy=True)
    return buffer.copy_to(memory or place)


def _order(client: ClientCore, layout: RequestedLayout, rank: int) -> tuple[int, ...] | None:
    """What `Buffer.custom_layout` has to be."""
    return None if layout is None else client.custom_layout(relayout.check_order(layout, rank))
