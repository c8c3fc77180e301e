"""Finds an operator's lowering for a plugin, and the kernels that lowerings use."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from pjrt_bridge import registry, user_warnings
from pjrt_bridge.registry.targets import kernels_of
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.torch_interop.custom_calls import lowering_of
from pjrt_bridge.torch_interop.emit.node_lowering import Lookup
from pjrt_bridge.torch_interop.foreign_functions import OPERATOR, lowering_for
from pjrt_bridge.torch_interop.lowering import registry as portable
from pjrt_bridge.torch_interop.lowering.composites import as_composite
from pjrt_bridge.torch_interop.lowering.context import Context


def lookup(client: Client, kernels: Kernels | None = None) -> Lookup:
    """A function that finds lowerings by operator name for a client's plugin.

    Custom calls of the user come first, then lowerings that packages bring for the plugin, then the
    portable ones.

    Args:
        client: of the plugin.
        kernels: that lowerings use; None: those that a package brings for the plugin.

    Warns with a `BridgeWarning` of a brought lowering whose name leaves out the overload.
    """
    own = registry.lowerings(client)
    _warn_of_names(own, client.plugin.name)
    kernels = kernels_of(client) if kernels is None else kernels

    def find(name: str) -> portable.Lowering | None:
        found = lowering_of(name, client)
        if found is not None:
            return found
        if name == OPERATOR:
            found = lowering_for(client.platform_name)
        else:
            found = own.get(name) or portable.find_lowering(name)
        if found is not None and name in kernels.composites:
            found = as_composite(name, found)
        return using(kernels, found)

    return find


def using(kernels: Kernels, lowering: portable.Lowering | None) -> portable.Lowering | None:
    """A lowering, if there is one, that emits with kernels."""
    if lowering is None or type(kernels) is Kernels:
        return lowering
    return partial(_using, kernels, lowering)


def _warn_of_names(own: Iterable[str], plugin: str) -> None:
    for name in own:
        if name.count(".") < 2 and portable.find_lowering(name) is None:
            text = (
                f"the lowering of {name!r} for plugin {plugin!r} is never used: an operator is "
                "named with its overload, as PyTorch prints it: 'aten.gelu.default'"
            )
            user_warnings.warn(text)


def _using(
    kernels: Kernels, lowering: portable.Lowering, c: Context, *args: Any, **kwargs: Any
) -> Any:
    return lowering(c.with_kernels(kernels), *args, **kwargs)
