"""Everything that pjrt-bridge has to know of mychip: one function for each hook.

All of them but the first are optional. This module is imported whenever plugins are listed, so it
imports no framework and loads no library; what needs one is imported in the function.
`pjrt_bridge.registry.hookspecs` has the specification of each hook.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pjrt_bridge.errors import OptionError
from pjrt_bridge.registry import PlatformSpec, PluginSpec, TopologySpec, hookimpl

if TYPE_CHECKING:
    from pjrt_bridge.abi.values import NamedValue
    from pjrt_bridge.extensions import Accessor
    from pjrt_bridge.runtime import Plugin
    from pjrt_bridge.torch_interop.lowering.api import Kernels, Lowering

NAME = "mychip"


@hookimpl
def pjrt_bridge_plugins() -> PluginSpec:
    """Where the library is, and which create options its clients read."""
    # With a library: library="/opt/mychip/libmychip_pjrt.so" in place of the address, or
    # library=wheel_library("mychip", "libmychip_pjrt.so") for one in the wheel `mychip`.
    return PluginSpec(
        NAME,
        address=_address,
        options={"celsius": 40.0},
        option_types={"celsius": float},
        description="an example accelerator: StableHLO's interpreter",
    )


def _address() -> int:
    from pjrt_bridge_mychip.plugin import table

    return table().address


@hookimpl
def pjrt_bridge_platforms() -> PlatformSpec:
    """Compiler flags that each compilation gets, because results would be wrong without them."""
    return PlatformSpec(NAME, compiler_flags={"mychip_fast_math": False})


@hookimpl
def pjrt_bridge_lowerings(plugin: Plugin) -> Mapping[str, Lowering] | None:
    """PyTorch's operators for which mychip has kernels."""
    if plugin.name != NAME:
        return None
    from pjrt_bridge_mychip.lowerings import LOWERINGS

    return LOWERINGS


@hookimpl
def pjrt_bridge_kernels(plugin: Plugin) -> Kernels | None:
    """How all other lowerings compute products, convolutions and reductions."""
    if plugin.name != NAME:
        return None
    from pjrt_bridge_mychip.kernels import MychipKernels

    return MychipKernels()


@hookimpl
def pjrt_bridge_slower(plugin: Plugin) -> Mapping[str, int] | None:
    """Elements of an operator's largest tensor from which on PyTorch on the host is faster."""
    return {"aten.sort": 4_096, "aten.topk": 4_096} if plugin.name == NAME else None


@hookimpl
def pjrt_bridge_extensions() -> list[type[Accessor]]:
    """Accessors for mychip's own extensions of the PJRT C API."""
    from pjrt_bridge_mychip.extension import Thermometer

    return [Thermometer]


@hookimpl
def pjrt_bridge_topology(
    plugin: str | None, target: str, options: Mapping[str, NamedValue]
) -> TopologySpec | None:
    """Names of devices to compile for where there are none: `mychip:1`.

    Raises:
        OptionError: the plugin is mychip, and the name is another one.
    """
    if target == "mychip:1":
        return TopologySpec(NAME, "1")
    if plugin != NAME:
        return None
    raise OptionError(f"plugin {NAME!r} has no topology {target!r}; expected 'mychip:1'")
