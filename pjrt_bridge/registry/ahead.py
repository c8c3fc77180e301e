"""Compiling ahead of time: for devices that are in another machine, or for those of this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import OptionError, PluginNotFound
from pjrt_bridge.registry.brought import topology_spec
from pjrt_bridge.registry.catalogue import INSTALL_FOR_TOPOLOGY
from pjrt_bridge.registry.discovery import PluginInfo
from pjrt_bridge.registry.registry import PluginLike, client, load, select
from pjrt_bridge.wrong_arguments import wrong

if TYPE_CHECKING:
    from pjrt_bridge.runtime import Compiled, CompileOptions, Topology
    from pjrt_bridge.stablehlo import Program


def topology(
    name: str = "", plugin: PluginLike | PluginInfo | None = None, /, **options: NamedValue
) -> Topology:
    """Devices by their description; they need not be there.

    Args:
        name: a name that a plugin or its package knows, such as "v5e:2x2" or "h100:8".
        plugin: as `select` takes it; None: the one whose package knows the name.
        **options: create options of the topology, as the plugin defines them; they replace those
            that the package brings.

    Raises:
        PluginNotFound: no package knows the name, or the plugin's library is missing.
        OptionError: a name or an option that cannot be meant.
        PjrtError: what the plugin answered.
    """
    return _describe(name, plugin, options)


def _describe(
    name: str, plugin: PluginLike | PluginInfo | None, options: Mapping[str, NamedValue]
) -> Topology:
    if not isinstance(name, str):
        raise OptionError(f"topology: found {name!r}, expected a name such as 'v5e:2x2'")
    info = plugin if isinstance(plugin, PluginInfo) or plugin is None else select(plugin)
    found = topology_spec(None if info is None else info.name, name, options)
    if found is not None:
        return load(info or found.plugin).topology(found.name, **{**found.options, **options})
    if info is None:
        raise PluginNotFound(
            f"no installed package knows the topology {name!r}; name the plugin, or install "
            f"{INSTALL_FOR_TOPOLOGY}"
        )
    return load(info).topology(name, **options)


def compile_for(
    program: Program | str | bytes,
    plugin: PluginLike | PluginInfo | None = None,
    *,
    topology: str | Topology | None = None,
    options: CompileOptions | None = None,
    **create_options: NamedValue,
) -> Compiled:
    """Compile a StableHLO program ahead of time.

    What comes back tells its cost and the memory that it needs; its `serialize()` gives bytes that
    `Client.deserialize` loads on a machine with the devices, with the same version of the plugin.

    Args:
        program: a Program, or StableHLO text, bytecode or a portable artifact.
        plugin: as `select` takes it; None: the one whose package knows the topology.
        topology: the devices to compile for, which need not be there; None: those of this machine,
            where nothing in `create_options` describes others.
        options: replicas, partitions, flags; one device by default.
        **create_options: create options of the topology, such as `target_config`, a
            GpuTargetConfigProto as text, for the CUDA plugin.

    Raises:
        ProgramError: not a program, or not expressible for the plugin's StableHLO version.
        UnsupportedDtype: an argument or result type that the plugin does not know.
        PluginNotFound: no package knows the topology; or none is given, and no device is there.
        OptionError: a topology or an option that cannot be meant.
        PjrtError: what the plugin answered; `ResourceExhausted` where the compiler finds that the
            program does not fit.
    """
    known = topology is None or isinstance(topology, str) or hasattr(topology, "compile")
    if not known or isinstance(topology, type):
        raise OptionError(wrong("topology", topology, "a name such as 'v5e:2x2', or a Topology"))
    if topology is None and not create_options:
        return client(plugin).compile(program, options=options)
    if topology is None or isinstance(topology, str):
        described = _describe(topology or "", plugin, create_options)
    elif create_options or plugin is not None:
        raise OptionError(f"{topology!r} is made already; found a plugin or options for it, too")
    else:
        described = topology
    return described.compile(program, options=options)
