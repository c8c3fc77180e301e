"""The client whose devices are torch's `pjrt` devices in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch

from pjrt_bridge import environment
from pjrt_bridge.errors import DeviceError
from pjrt_bridge.registry import client as select_client
from pjrt_bridge.runtime import Client, Device
from pjrt_bridge.torch_interop.named_device import first_use
from pjrt_bridge.torch_interop.resident.client import backward_threads, launched
from pjrt_bridge.torch_interop.resident.client.current import (
    Where,
    by_default,
    current_index,
    index_of,
)

EAGER_VARIABLE = "PJRT_BRIDGE_EAGER"

_lock = threading.Lock()
_client: Client | None = None
_asked: tuple[Any, ...] | None = None
_compiled_for: Client | None = None
_of_client: list[Callable[[], None]] = []


def use(plugin: Any = None, /, **options: Any) -> Client:
    """Choose the client that `torch.device("pjrt")` stands for.

    Without it, the first use of the device takes the plugin that `PJRT_BRIDGE_PLUGIN` names, else
    the best that was found.

    Args:
        plugin: a name that `pjrt-bridge plugins` lists, a path, or a PluginSpec.
        options: create options of the plugin.

    Raises:
        DeviceError: another client was chosen before, and tensors may be on it.
        PluginNotFound, OptionError: see `pjrt_bridge.registry.client`.
    """
    global _asked
    first_use.begin()
    with _lock:
        found = select_client(plugin, **options)
        if _client is not None and found is not _client and not _client.closed:
            raise DeviceError(
                f"device 'pjrt' of this process is plugin {_client.plugin.name!r}"
                f"{_shown(_asked)}, and tensors may be on it; choose {found.plugin.name!r} before "
                "the first tensor is made, in another process"
            )
        _chose(found)
        _asked = tuple(sorted(options.items()))
        return found


def use_client(given: Client) -> Client:
    """Have `torch.device("pjrt")` stand for a client.

    Raises:
        DeviceError: it stands for another one, and tensors may be on it.
    """
    first_use.begin()
    with _lock:
        if _client is not None and given is not _client and not _client.closed:
            raise DeviceError(
                f"device 'pjrt' of this process is plugin {_client.plugin.name!r}{_shown(_asked)}, "
                f"and tensors may be on it; found {given!r}, expected that client: device.use() "
                "gives it"
            )
        _chose(given)
        return given


def _chose(found: Client) -> None:
    global _client, _compiled_for
    if found is not _compiled_for:
        forget_compiled()
    backward_threads.start(_count(found))
    _client = _compiled_for = found
    forget_names()
    # Torch keeps which module is the accelerator's: that of the host, until there is a client.
    torch.get_device_module.cache_clear()


def forget_names() -> None:
    """Find anew which devices indices name; `launched` says what is asked for that."""
    chosen.cache_clear()
    default_index.cache_clear()


def of_client(forget: Callable[[], None]) -> Callable[[], None]:
    """Have a function called when another client is chosen: what it forgets belongs to the last."""
    _of_client.append(forget)
    return forget


def forget_compiled() -> None:
    """Drop what was compiled for the device, or is kept on it, for further calls."""
    for forget in _of_client:
        forget()


def _shown(options: tuple[Any, ...] | None) -> str:
    return f" with {', '.join(f'{name}={value!r}' for name, value in options)}" if options else ""


def client() -> Client:
    """The client; the default one is chosen now where none was."""
    found = _client
    if found is None or found.closed:
        if found is not None:
            raise DeviceError(
                f"the client of plugin {found.plugin.name!r}, which device 'pjrt' is, was closed; "
                "its tensors are lost"
            )
        found = use()
    return found


def device_count() -> int:
    """The number of devices that torch can name.

    Programs that a launcher starts name the device of a process by its number among those of the
    machine. If each process has fewer devices of its own, every number up to that of the processes
    is a name of one of them: of the device with this number modulo their number.
    """
    return _count(client())


def _count(found: Client) -> int:
    return max(len(found.devices), launched.processes())


@cache
def chosen(index: int) -> tuple[Client, Device]:
    """The client, and its device with this index (`device_count`).

    Raises:
        DeviceError: it has fewer devices.
    """
    found = client()
    own = len(found.devices)
    if not 0 <= index < _count(found):
        names = f", which {launched.processes()} processes share" if _count(found) > own else ""
        raise DeviceError(
            f"device 'pjrt:{index}': plugin {found.plugin.name!r} has {own} "
            f"devices, counted from 0{names}"
        )
    backward_threads.need(index)
    return found, found.devices[index % own]


@cache
def default_index() -> int:
    """The index that `torch.device("pjrt")` has where nothing was chosen.

    It is that of this process, if programs may name its devices by that, and can train there. It is
    0 where an operator was the first use of the device: its results are on the device 0 already.
    """
    rank = launched.rank()
    is_name = bool(rank) and len(client().devices) < launched.processes()
    is_settled = bool(first_use.by_operators) or not backward_threads.has(rank)
    return rank if is_name and not is_settled else 0


by_default(default_index)


def index_of_own(device: Device) -> int:
    """The index of a device of the client: of its names the current one, else the first."""
    current = current_index()
    own = client().devices
    return current if own[current % len(own)] is device else own.index(device)


def existing_index(device: Where) -> int:
    """The index of a device that a caller names.

    Raises:
        DeviceError: the client has no such device, or was closed.
        ValueError: a device of another type.
    """
    client()
    index = index_of(device)
    chosen(index)
    return index


Mode = Literal["sync", "async", "fused"]
"""How operators run: each waits and checks its indices, each by itself, or many as one program."""

_MODES: dict[str, Mode] = {"async": "async", "fused": "fused", "sync": "sync"}


def eager_mode() -> Mode:
    """The mode in which operators run, from `PJRT_BRIDGE_EAGER`.

    Raises:
        VariableError: another value.
    """
    return _MODES[environment.choice(EAGER_VARIABLE, tuple(_MODES))]


def is_in_use() -> bool:
    """Whether there is a client."""
    return _client is not None and not _client.closed
