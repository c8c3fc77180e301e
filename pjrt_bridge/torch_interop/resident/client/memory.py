"""What plugins tell of their devices and of the memory there, as `torch.cuda` tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.runtime import Device
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.user_warnings import warn

_SHOWN = (
    ("in use", "bytes_in_use", "peak_bytes_in_use"),
    ("taken from the device", "bytes_reserved", "peak_bytes_reserved"),
    ("in pools", "pool_bytes", "peak_pool_bytes"),
    ("limit", "bytes_limit", ""),
    ("largest free block", "largest_free_block_bytes", ""),
    ("largest allocation", "largest_alloc_size", ""),
)
"""Rows of the summary: a name, the number now, and its peak."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class DeviceProperties:
    """What a plugin tells of a device.

    Attributes:
        name: the plugin's name for devices of this kind.
        total_memory: bytes that programs can have; 0 where the plugin does not tell.
        platform: the plugin's name for its platform.
        platform_version: of the plugin.
        attributes: what else the plugin tells, such as numbers of cores and coordinates.
    """

    name: str
    total_memory: int
    platform: str
    platform_version: str
    attributes: Mapping[str, Any]


def properties(device: Device, *, platform: str, version: str) -> DeviceProperties:
    """The properties of a device of a client with this platform."""
    total = told(device, "bytes_limit") or device.memory_limit or 0
    return DeviceProperties(device.kind, total, platform, version, dict(device.attributes))


def told(device: Device, name: str) -> int:
    """One of the numbers that a plugin tells of a device's memory; 0 where it does not tell."""
    try:
        return int(device.memory_stats().get(name) or 0)
    except PjrtBridgeError:
        return 0


def summary(device: Device, index: int, plugin: str) -> str:
    """A table of what a plugin tells of a device's memory."""
    title = f"Memory of device '{NAME}:{index}' ({device.kind}, plugin {plugin!r})"
    try:
        stats = device.memory_stats()
    except PjrtBridgeError as error:
        return f"{title}\n  the plugin does not tell: {error}"
    lines = [title, f"  {'':22}{'now':>12}{'peak':>12}"]
    lines += [
        f"  {name:22}{_size(stats.get(now)):>12}{_size(stats.get(peak)):>12}"
        for name, now, peak in _SHOWN
        if now in stats or peak in stats
    ]
    if "num_allocs" in stats:
        lines.append(f"  {'allocations':22}{stats['num_allocs']:>12}")
    return "\n".join(lines)


def _size(count: int | None) -> str:
    if count is None:
        return ""
    power = min(max(count.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{count} B" if not power else f"{count / (1 << 10 * power):.1f} {_UNITS[power]}"


def warn_of_peaks(plugin: str) -> None:
    """Warn that peaks are not counted anew: PJRT has no function for that."""
    warn(
        f"plugin {plugin!r} goes on counting the peaks of memory from the beginning of the process:"
        " PJRT cannot reset them"
    )
