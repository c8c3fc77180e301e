"""Which PJRT plugins there are and how packages add theirs.

`plugins()` lists, `select()` decides, `client()` opens; `topology()` and `compile_for()` are for
devices that are not there. Vendors write a `PluginSpec` behind a
`hookimpl` and declare the module under the entry-point group `pjrt_bridge`.
"""

from pjrt_bridge.registry.ahead import compile_for, topology
from pjrt_bridge.registry.brought import accessors, kernels, lowerings, platform_specs, slower
from pjrt_bridge.registry.budget import Budget, budget
from pjrt_bridge.registry.discovery import PluginInfo, plugins, refresh
from pjrt_bridge.registry.hookspecs import hookimpl
from pjrt_bridge.registry.registry import check_client, client, load, select
from pjrt_bridge.registry.spec import DeviceFigures, PluginSpec, TopologySpec
from pjrt_bridge.registry.wheels import wheel_library
from pjrt_bridge.runtime.core.platforms import PlatformSpec
from pjrt_bridge.runtime.keyvalue import Processes

__all__ = [
    "Budget",
    "DeviceFigures",
    "PlatformSpec",
    "PluginInfo",
    "PluginSpec",
    "Processes",
    "TopologySpec",
    "accessors",
    "budget",
    "check_client",
    "client",
    "compile_for",
    "hookimpl",
    "kernels",
    "load",
    "lowerings",
    "platform_specs",
    "plugins",
    "refresh",
    "select",
    "slower",
    "topology",
    "wheel_library",
]
