"""Google's TPU plugin for pjrt-bridge: its library, its environment, and slices to compile for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import OptionError
from pjrt_bridge.registry import (
    DeviceFigures,
    PluginSpec,
    TopologySpec,
    hookimpl,
    wheel_library,
)

PCI_DEVICES = Path("/sys/bus/pci/devices")
_VENDOR = "0x1ae0"
_CHIPS = {
    "0x0027": "v2 or v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "tpu7x",
    "0x007c": "tpu8t",
    "0x0083": "tpu8i",
}
"""Generations by PCI device id of Google's; its network cards have the same vendor."""

_TOPOLOGY = re.compile(
    r"(v\d+[a-z]*|tpu\d+[a-z]?)[:=_]([1-9]\d*(?:x[1-9]\d*){0,3})(_twisted|_untwisted)?"
)

_GB = 10**9
_TERA = 10**12
_FIGURES = {
    "v4": DeviceFigures(275 * _TERA, 1_228 * _GB, 300 * _GB, 32 * _GB),
    "v5e": DeviceFigures(197 * _TERA, 819 * _GB, 200 * _GB, 16 * _GB),
    "v5p": DeviceFigures(459 * _TERA, 2_765 * _GB, 600 * _GB, 95 * _GB),
    "v6e": DeviceFigures(918 * _TERA, 1_640 * _GB, 448 * _GB, 32 * _GB),
}
"""Of one chip, by Google's documentation ("TPU architecture"): peak in bfloat16, bandwidth of its
memory, all its links to other chips, memory."""

# libtpu asks the metadata service of Google's cloud for these, for minutes where there is none.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}


@hookimpl
def pjrt_bridge_plugins() -> PluginSpec:
    """The plugin `tpu`.

    Raises:
        PluginNotFound: the wheel that holds the library is not installed.
    """
    there = chips(PCI_DEVICES)
    return PluginSpec(
        name="tpu",
        library=wheel_library("libtpu", "libtpu.so"),
        environment={"TF_CPP_MIN_LOG_LEVEL": "1", **({} if there else _NO_TPU)},
        priority=200,
        description=f"Google's TPUs{f' ({len(there)} x {there[0]})' if there else ''}",
        no_device=None if there else "no TPU on the PCI bus",
        spans_processes=True,
    )


def chips(pci_devices: Path) -> list[str]:
    """Generation of each TPU chip of this machine, as the kernel lists them under a folder."""
    found = []
    for vendor in sorted(pci_devices.glob("*/vendor")):
        try:
            if vendor.read_text().strip() == _VENDOR:
                found.append(_CHIPS.get((vendor.parent / "device").read_text().strip()))
        except OSError:
            # A device that was taken out in between.
            continue
    return [generation for generation in found if generation is not None]


@hookimpl
def pjrt_bridge_topology(
    plugin: str | None, target: str, options: Mapping[str, NamedValue]
) -> TopologySpec | None:
    """A slice of TPUs by the name that libtpu gives it.

    Raises:
        OptionError: the plugin is `tpu`, and the name is none of a slice.
    """
    if plugin not in (None, "tpu"):
        return None
    if found := _TOPOLOGY.fullmatch(target):
        figures = _FIGURES.get(found[1])
        # A chip of these generations is one device; one of others may be two.
        chips = math.prod(map(int, found[2].split("x"))) if figures else None
        return TopologySpec("tpu", target, figures=figures, devices=chips)
    if plugin is None:
        return None
    raise OptionError(
        f"plugin 'tpu' has no topology {target!r}; expected a generation and the chips along each "
        "dimension, such as 'v5e:2x2', 'v5p:2x2x1' or 'tpu7x:2x2x1'"
    )
