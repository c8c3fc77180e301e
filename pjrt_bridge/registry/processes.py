"""Clients that span processes: how the processes are named, and what a plugin is told of them."""

from __future__ import annotations

from importlib import metadata

from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import OptionError
from pjrt_bridge.registry.spec import PluginSpec
from pjrt_bridge.runtime.keyvalue import Processes
from pjrt_bridge.wrong_arguments import wrong

GROUP = "pjrt_bridge.processes"
"""Entry points: by name a function without arguments that gives a `Processes`."""


def find(processes: Processes | str) -> Processes:
    """The processes that are meant.

    Args:
        processes: themselves, or a name that a package declares under `GROUP`.

    Raises:
        OptionError: no such name, or what a package gives for it cannot be used; or what its
            function raises, such as that a variable of the environment is missing.
    """
    if isinstance(processes, Processes):
        return processes
    if not isinstance(processes, str):
        raise OptionError(wrong("processes", processes, "a Processes or the name of one"))
    entries = {entry.name: entry for entry in metadata.entry_points(group=GROUP)}
    entry = entries.get(processes)
    if entry is None:
        known = ", ".join(map(repr, sorted(entries))) or "none"
        raise OptionError(f"processes: found {processes!r}, expected one of: {known}")
    try:
        function = entry.load()
    except (ImportError, AttributeError) as error:
        raise OptionError(f"processes {processes!r}: {entry.value}: {error}") from error
    found = function()
    if not isinstance(found, Processes):
        raise OptionError(wrong(f"processes {processes!r}: {entry.value}", found, "a Processes"))
    return found


def options_for(spec: PluginSpec, processes: Processes) -> dict[str, NamedValue]:
    """The create options that tell a plugin which process of how many this is.

    Raises:
        OptionError: the plugin's clients do not span processes.
    """
    if not spec.spans_processes:
        raise OptionError(
            f"plugin {spec.name!r} has no clients that span processes: its package declares no "
            "spans_processes; leave out processes, and let torch.distributed connect clients of "
            "one process each"
        )
    options: dict[str, NamedValue] = {"node_id": processes.rank, "num_nodes": processes.count}
    if processes.local_rank is not None and spec.divides_machines:
        options["visible_devices"] = [processes.local_rank]
    return options
