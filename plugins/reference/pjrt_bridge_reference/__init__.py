"""A PJRT plugin in pure Python, over StableHLO's reference interpreter.

It is slow and exact: an oracle to compare plugins with, a device to test callers on where there is
none, and, module by module, an example of how a plugin is written (`docs/writing_a_plugin.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt_bridge.registry import PlatformSpec, PluginSpec, hookimpl
from pjrt_bridge_reference.version import OPTIONS, PLATFORM

if TYPE_CHECKING:
    from pjrt_bridge.extensions.base import Accessor


@hookimpl
def pjrt_bridge_plugins() -> PluginSpec:
    """The plugin `reference`, with one device unless a client asks for more."""
    return PluginSpec(
        name="reference",
        address=_address,
        options={"device_count": 1},
        option_types=OPTIONS,
        # Never the default: every other plugin is faster.
        priority=-100,
        spans_processes=True,
        description="StableHLO's reference interpreter behind the PJRT C API",
    )


@hookimpl
def pjrt_bridge_platforms() -> PlatformSpec:
    """That the interpreter multiplies in the type of its operands."""
    return PlatformSpec(PLATFORM, exact_products=True)


def _address() -> int:
    # Not at the top: whoever lists plugins imports this module, and need not pay for all others.
    from pjrt_bridge_reference.table import table

    return table().address


@hookimpl
def pjrt_bridge_extensions() -> list[type[Accessor]]:
    """The accessor of the plugin's own extension."""
    from pjrt_bridge_reference.accessors import Statistics

    return [Statistics]
