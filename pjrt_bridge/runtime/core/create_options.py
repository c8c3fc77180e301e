"""Create options of clients and topologies, checked because a plugin may abort on a bad one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pjrt_bridge.abi.values import NamedValue, encode_named_values
from pjrt_bridge.errors import OptionError
from pjrt_bridge.runtime.core import platforms
from pjrt_bridge.runtime.core.platforms import OptionType

OPTION_TYPES: Mapping[str, type] = {
    "abort_collectives_on_failure": bool,
    "allocator": str,
    "collective_memory_size": int,
    "max_inflight_computations": int,
    "memory_fraction": float,
    "ml_framework_name": str,
    "ml_framework_version": str,
    "node_id": int,
    "num_nodes": int,
    "partition_index": int,
    "platform_name": str,
    "preallocate": bool,
    "should_stage_host_to_device_transfers": bool,
    "visible_devices": list,
}
"""Types of the create options that several vendors' plugins read (`*_pjrt_client` sources of XLA).

A value of another type aborts the process inside the plugin, so it never gets there. Packages state
the options of their platforms (`PlatformSpec.option_types`), and all that a plugin reads
(`Plugin.load`).
"""

TOPOLOGY_OPTION_TYPES: Mapping[str, type] = {
    "chip_config_name": str,
    "chips_per_host_bounds": list,
    "num_slices": int,
    "target_config": str,
    "topology": str,
    "wrap": list,
}
"""Types of the create options of topologies that vendors' plugins read; as for clients."""


def check_topology_options(options: Mapping[str, Any], *, plugin: str) -> dict[str, NamedValue]:
    """Create options of a topology, checked against what public plugins are known to read.

    Raises:
        OptionError: a wrong type, or a value that no option can have.
    """
    if not isinstance(options, Mapping):
        raise OptionError(f"topology of plugin {plugin!r}: found {options!r}, expected a mapping")
    checked = {
        name: _of_type(name, value, TOPOLOGY_OPTION_TYPES.get(name), plugin)
        for name, value in options.items()
    }
    encode_named_values(checked)
    return checked


def check_client_options(
    options: Mapping[str, Any], declared: Mapping[str, OptionType] | None, *, plugin: str
) -> dict[str, NamedValue]:
    """Options of a client, checked against what the plugin declares or is known to read.

    Args:
        options: as the user gave them.
        declared: the complete set of options with their types, when the plugin states it.
        plugin: name for messages.

    Raises:
        OptionError: a wrong type, a value that no option can have, a number out of range, or a
            name that the plugin does not declare.
    """
    if not isinstance(options, Mapping):
        raise OptionError(f"options of plugin {plugin!r}: found {options!r}, expected a mapping")
    known = {**OPTION_TYPES, **_of_platforms()} if options else {}
    checked: dict[str, NamedValue] = {}
    for name, value in options.items():
        if declared is not None and isinstance(name, str) and name not in declared:
            names = ", ".join(declared) or "none"
            raise OptionError(f"plugin {plugin!r} has no option {name!r}; it declares: {names}")
        expected, common = (declared or {}).get(name), known.get(name)
        if expected is None or (expected is int and isinstance(common, range)):
            expected = common
        checked[name] = _of_type(name, value, expected, plugin)
    encode_named_values(checked)
    return checked


def _of_platforms() -> dict[str, OptionType]:
    return {
        name: kind
        for platform in platforms.known().values()
        for name, kind in platform.option_types.items()
    }


def _of_type(name: object, value: Any, expected: OptionType | None, plugin: str) -> Any:
    """A value as the plugin has to get it, if it is of the type that the plugin reads."""
    if not isinstance(name, str):
        raise OptionError(f"plugin {plugin!r} has no option {name!r}; names are texts")
    if expected is float and type(value) is int:
        value = float(value)
    if expected is list and isinstance(value, tuple):
        value = list(value)
    kind = int if isinstance(expected, range) else expected
    if kind is not None and type(value) is not kind:
        raise OptionError(
            f"option {name!r} of plugin {plugin!r}: found {value!r} of type "
            f"{type(value).__name__}, expected {kind.__name__}"
        )
    if isinstance(expected, range) and value not in expected:
        raise OptionError(
            f"option {name!r} of plugin {plugin!r}: found {value}, "
            f"expected {expected[0]} to {expected[-1]}"
        )
    return value
