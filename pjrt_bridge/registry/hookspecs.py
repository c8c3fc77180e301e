"""The hooks through which a package adds something to the bridge.

A package names a module under the entry-point group `pjrt_bridge` and marks functions of that
module with `hookimpl`; it implements only the hooks that it needs:

```python
from pjrt_bridge.registry import PluginSpec, hookimpl


@hookimpl
def pjrt_bridge_plugins():
    return PluginSpec("mychip", library="/opt/mychip/libmychip_pjrt.so", priority=50)
```

Entry points are imported at discovery: a hook module imports no framework and loads no library.
A hook that raises costs only its own contribution; its message becomes the reason that
`plugins()` shows, so it should say what is missing and how to get it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.registry.spec import PluginSpec, TopologySpec

if TYPE_CHECKING:
    from pjrt_bridge.runtime import Client, Plugin

GROUP = "pjrt_bridge"
"""Name of the entry-point group and of the pluggy project."""

Lowering = Callable[..., Any]
"""A function of (builder, inputs) that emits StableHLO or says why it cannot."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def pjrt_bridge_plugins() -> PluginSpec | Iterable[PluginSpec] | None:
    """Say which PJRT plugins this package brings.

    Returns:
        One specification or several; None where the package has none on this machine.
    """


@hookspec
def pjrt_bridge_extensions() -> Iterable[type[Any]] | None:
    """Bring accessor classes for extensions of the PJRT C API.

    Returns:
        Subclasses of `pjrt_bridge.extensions.Accessor`, which `accessors()` lists beside the
        built-in ones; `client.extension(cls)` gives what a plugin offers of one.
    """


@hookspec
def pjrt_bridge_lowerings(plugin: Plugin, client: Client) -> Mapping[str, Lowering] | None:
    """Bring lowerings for one target, asked before the portable ones.

    Args:
        plugin: the loaded plugin that a program is compiled for; its name and attributes tell
            whether this package has anything to add.
        client: the client that it is compiled for, where custom calls can be registered; as any
            argument of a hook it may be left out.

    Returns:
        Lowerings by operator name, spelled as the frontend spells it (`"aten.mm.default"`).
    """


@hookspec
def pjrt_bridge_kernels(plugin: Plugin, client: Client) -> Any | None:
    """Bring the kernels with which lowerings emit products, convolutions and reductions.

    Args:
        plugin: the loaded plugin that a program is compiled for.
        client: the client, as for `pjrt_bridge_lowerings`.

    Returns:
        An instance of the frontend's class for them, for PyTorch of
        `pjrt_bridge.torch_interop.lowering.api.Kernels`; None for the portable ones.
    """


@hookspec
def pjrt_bridge_slower(plugin: Plugin) -> Mapping[str, int] | None:
    """Say which operators a plugin computes more slowly than the host, and from which size on.

    Where the user has measured that on this machine (`pjrt-bridge calibrate`), PyTorch's part of it
    is not asked for.

    Args:
        plugin: the loaded plugin that a program is compiled for.

    Returns:
        By operator, PyTorch's with or without overload (`"aten.sort"`), TensorFlow's by type
        (`"tf.Cumsum"`), the number of elements of its largest tensor from which on the host is
        faster, what it costs to divide a graph included.
    """


@hookspec
def pjrt_bridge_topology(
    plugin: str | None, target: str, options: Mapping[str, NamedValue]
) -> TopologySpec | None:
    """Say which topology is meant by a name, to compile for devices that are not there.

    Args:
        plugin: name of the plugin that is asked for; None: whichever knows the name.
        target: what the user wrote, such as "v5e:2x2" or "h100"; may be empty where `options`
            say it all.
        options: create options that the user gave.

    Returns:
        None where the name is not of this package.

    Raises:
        OptionError: the plugin is this package's, and there is no such target; the text lists what
            there is. Any other exception leaves the package out.
    """
