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
A hook may leave out arguments that it does not need; those that it has are named as here. One that
raises, or returns something else, costs only its own contribution: the message of
`pjrt_bridge_plugins` becomes the reason that `plugins()` shows, the message of another hook a
`BridgeWarning`; so it should say what is missing and how to get it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pluggy

from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.registry.spec import PluginSpec, TopologySpec
from pjrt_bridge.runtime.core.platforms import PlatformSpec
from pjrt_bridge.stablehlo.builder.builder import Value

if TYPE_CHECKING:
    from pjrt_bridge.extensions import Accessor
    from pjrt_bridge.runtime import Client, Plugin

GROUP = "pjrt_bridge"
"""Name of the entry-point group and of the pluggy project."""

Lowering = Callable[..., Value | Sequence[Value | None]]
"""A function of (context, *arguments, **keywords) that emits the StableHLO of one operator.

For PyTorch the context is a `Context` of `pjrt_bridge.torch_interop.lowering.api`, and the rest are
the operator's arguments with a `Value` for each tensor. It returns the `Value` of the one output,
or a sequence with an entry for each output, None where the operator gives None; and raises
`NotLowerable` (of the same module) for a use that it cannot express.
"""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def pjrt_bridge_plugins() -> PluginSpec | Iterable[PluginSpec] | None:
    """Say which PJRT plugins this package brings.

    Returns:
        One specification or several; None where the package has none on this machine.
    """


@hookspec
def pjrt_bridge_platforms() -> PlatformSpec | Iterable[PlatformSpec] | None:
    """State what is known of a platform and its plugins do not tell: defects, names, option types.

    It holds for every plugin that gives its platform this name, also for one that is loaded by the
    path of its library. So it is stated apart from the plugin, and also where the library that the
    package is for is not installed.

    Returns:
        One platform or several; None where there is nothing to state.
    """


@hookspec
def pjrt_bridge_extensions() -> type[Accessor] | Iterable[type[Accessor]] | None:
    """Bring accessor classes for extensions of the PJRT C API.

    Returns:
        One subclass of `pjrt_bridge.extensions.Accessor` or several, which `accessors()` lists
        beside the built-in ones; `client.extension(cls)` gives what a plugin offers of one.
    """


@hookspec
def pjrt_bridge_lowerings(plugin: Plugin, client: Client) -> Mapping[str, Lowering] | None:
    """Bring lowerings of PyTorch's operators for one target, asked before the portable ones.

    Args:
        plugin: the loaded plugin that a program is compiled for; its name and attributes tell
            whether this package has anything to add.
        client: the client that it is compiled for, where custom calls can be registered.

    Returns:
        Lowerings by operator name, spelled as PyTorch prints it (`"aten.mm.default"`); None where
        there are none for this plugin.
    """


@hookspec
def pjrt_bridge_kernels(plugin: Plugin, client: Client) -> object | None:
    """Bring the kernels for products, convolutions and reductions, and list composites.

    Lowerings emit with them; programs of exported models and TensorFlow's functions are rewritten
    for them before they are compiled. Composites (`stablehlo.composite`) that the kernels do not
    list are inlined.

    Args:
        plugin: the loaded plugin that a program is compiled for.
        client: the client, as for `pjrt_bridge_lowerings`.

    Returns:
        An instance of `pjrt_bridge.stablehlo.kernels.Kernels`; None for the portable ones.
    """


@hookspec
def pjrt_bridge_slower(plugin: Plugin) -> Mapping[str, int] | None:
    """Say which operators a plugin computes more slowly than the host, and from which size on.

    For PyTorch it is not asked where the user has measured that on this machine (`pjrt-bridge
    calibrate`), wants everything on the device (`placement`), or forbids the host (`fallback`).

    Args:
        plugin: the loaded plugin that a program is compiled for.

    Returns:
        By operator, PyTorch's with or without overload (`"aten.sort"`), TensorFlow's by type
        (`"tf.Cumsum"`), the number of elements of its largest tensor from which on the host is
        faster, what it costs to divide a graph included; None where there are none.
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
        The plugin, and what its topology function takes, to which the options that the user gave
        are added; None where the name is not of this package.

    Raises:
        OptionError: the plugin is this package's, and there is no such target; the text lists what
            there is. Any other exception leaves the package out.
    """
