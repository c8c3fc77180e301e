"""The name of the device in torch, and the module that torch looks for under it.

Only torch is imported here: torch does so whenever it is imported (`autoload`).
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import backend_registration

NAME = "pjrt"
"""Of the device in torch."""

OWN_DEVICES = ("cpu", NAME)
"""Torch's types of the devices whose tensors all programs take."""

_CODE_GENERATORS = ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen")
"""Classes that Inductor looks for in the module of a device."""

_logger = logging.getLogger(__name__)
# A prototype of its own: the attributes of ctypes.pythonapi are shared by all modules.
_pending: Callable[[], object] = ctypes.PYFUNCTYPE(ctypes.c_void_p)(
    ("PyErr_Occurred", ctypes.pythonapi)
)
_UNNAMED = "privateuseone"
_collected: list[list[BaseException]] = []
GUARD: list[Any] = []
"""What torch was given to enter and leave the device, once the device is named."""


def name() -> str | None:
    """The name that torch's device for others has in this process; None if it has none."""
    found: str = torch._C._get_privateuse1_backend_name()
    return None if found == _UNNAMED else found


def has_own_accelerator() -> bool:
    """Whether this build of torch has an accelerator of its own in this machine.

    Nothing of the accelerator is started: processes may be forked afterwards.
    """
    # Asks NVIDIA's management library, where there is one.
    cuda: int = torch.cuda.device_count() if torch.version.cuda or torch.version.hip else 0
    return cuda > 0 or (torch.xpu._is_compiled() and torch.xpu.device_count() > 0)


def give_name(load_module: Callable[[], Any]) -> None:
    """Name the device, with its module, `torch.pjrt`.

    Args:
        load_module: gives what has the module's functions.
    """
    setup: Callable[..., None] = backend_registration._setup_privateuseone_for_python_backend
    GUARD.append(Guard())
    setup(NAME, _Module(load_module), _DeviceHooks(), *GUARD)
    _name_backend()


def _name_backend() -> None:
    """Tell torch.distributed which of its backends exchanges tensors of the device."""
    if not dist.is_available():
        return
    kinds: Any = dist.Backend
    kinds.default_device_backend_map.setdefault(NAME, kinds.GLOO)
    for devices in kinds.backend_capability.values():
        if "cpu" in devices and NAME not in devices:
            devices.append(NAME)


def is_available() -> bool:
    """Whether the device is in use, or the environment names a plugin for it.

    A plugin alone is no reason: code that asks torch for an accelerator would move models to it
    that the user means to compile for it, or to leave on the host.
    """
    chosen = sys.modules.get("pjrt_bridge.torch_interop.resident.client.chosen")
    in_use = chosen is not None and chosen.is_in_use()
    return in_use or bool(os.environ.get("PJRT_BRIDGE_PLUGIN", "").strip())


class _Module:
    """`torch.pjrt`: the functions of `device.torch_module`, which is loaded when it is used."""

    __name__ = "torch.pjrt"

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load

    def __getattr__(self, name: str) -> Any:
        # Torch asks every module of a device for these, also where nobody uses the device.
        if name == "_is_in_bad_fork":
            return lambda: False
        if name == "_lazy_init":
            # Without it torch (2.11) takes the device for one without work to wait for.
            return lambda: None
        if name in ("is_available", "is_initialized"):
            return is_available
        if name == "Scheduling":
            # Inductor asks for its code generator, before it compiles graphs for any device.
            import_module("pjrt_bridge.torch_interop.compat.inductor").refuse_graphs_of(NAME)
        if name.startswith("_") or name in _CODE_GENERATORS:
            raise AttributeError(name)
        return getattr(self._load(), name)


@contextmanager
def exceptions_of_backward() -> Iterator[list[BaseException]]:
    """Collect what backward raises in a `with` block, on threads of devices, and torch loses."""
    found: list[BaseException] = []
    _collected.append(found)
    try:
        yield found
    finally:
        _collected.remove(found)


class _DeviceHooks(torch._C._acc.PrivateUse1Hooks):
    """Answers to torch's questions about the device."""

    def is_available(self) -> bool:
        """Whether the device is in use."""
        return is_available()

    def has_primary_context(self, device_index: int) -> bool:
        """Whether a device is in use."""
        return is_available()

    def is_built(self) -> bool:
        """Whether torch has a device of this kind."""
        return True


class Guard(torch._C._acc.DeviceGuard):
    """The guard that torch calls where it enters and leaves the device.

    It leaves it while an exception that a hook of backward raised is pending, and ends the process
    where what it calls returns with one. So the exception is taken, and told here, unless it is
    collected; backward then raises SystemError, since torch finds none.
    """

    def type_(self) -> Any:
        """The type of the device."""
        try:
            # Raises what is pending.
            _pending()
        except BaseException as error:
            if _collected:
                _collected[-1].append(error)
                return torch._C._autograd.DeviceType.PrivateUse1
            _logger.error("a hook of backward raised", exc_info=error)
        return torch._C._autograd.DeviceType.PrivateUse1
