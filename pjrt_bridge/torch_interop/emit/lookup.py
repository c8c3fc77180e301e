"""Which lowering an operator gets on a plugin, and which kernels the portable ones use there."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from pjrt_bridge import registry
from pjrt_bridge.errors import BridgeWarning
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop.custom_calls import lowering_of
from pjrt_bridge.torch_interop.emit.node_lowering import Lookup
from pjrt_bridge.torch_interop.lowering import registry as portable
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.kernels import Kernels


def lookup(client: Client, kernels: Kernels | None = None) -> Lookup:
    """Finds lowerings: the user's, else what packages bring for the plugin, else the portable ones.

    Args:
        client: whose plugin it is.
        kernels: what the portable ones compute with; None: what a package brings for the plugin.
    """
    own = registry.lowerings(client)
    kernels = kernels_of(client) if kernels is None else kernels

    def find(name: str) -> portable.Lowering | None:
        found = lowering_of(name, client)
        if found is not None:
            return found
        found = own.get(name) or portable.find(name)
        if found is None or type(kernels) is Kernels:
            return found
        return partial(_using, kernels, found)

    return find


def _using(
    kernels: Kernels, lowering: portable.Lowering, c: Context, *args: Any, **kwargs: Any
) -> Any:
    return lowering(c.using(kernels), *args, **kwargs)


def kernels_of(client: Client) -> Kernels:
    """The kernels that a package brings for the plugin, else the portable ones.

    What is brought and no `Kernels` is not used, with a `BridgeWarning`.
    """
    found = registry.kernels(client)
    if found is None:
        return Kernels()
    if isinstance(found, Kernels):
        return found
    name = client.plugin.name
    text = f"kernels for plugin {name!r} are not used: found {found!r}, expected a Kernels"
    warnings.warn(text, BridgeWarning, stacklevel=3)
    return Kernels()
