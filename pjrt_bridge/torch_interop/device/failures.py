"""Errors of plugins with their context: the operator, its arguments and the user's line."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from pjrt_bridge.errors import OutOfRange, PjrtError, ResourceExhausted
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.device.naming import NAME

_SHOWN = 4


class OutOfDeviceMemory(ResourceExhausted, torch.OutOfMemoryError):
    """No room on the device: what users of other devices of torch catch."""


def told(
    error: PjrtError, operator: str, given: Iterable[TensorType], index: int, line: str = ""
) -> PjrtError:
    """An error that names the operator that a plugin was asked to run.

    An index that is out of range is left to PyTorch, which raises its own error.

    Args:
        error: of the plugin.
        operator: its name.
        given: the arrays that its program takes.
        index: of the device.
        line: of the user's code, as `file:line`, where the traceback does not have it.
    """
    if isinstance(error, OutOfRange):
        return error
    if isinstance(error, ResourceExhausted) and not isinstance(error, OutOfDeviceMemory):
        error = OutOfDeviceMemory(
            error.message, code=error.code, plugin=error.plugin, function=error.function
        ).with_traceback(error.__traceback__)
    error.args = (f"{error.args[0]}: {described(operator, given, index, line)}",)
    return error


def described(operator: str, given: Iterable[TensorType], index: int, line: str) -> str:
    """A call in the text of an error; see `told`."""
    types = list(map(str, given))
    shown = ", ".join(types[:_SHOWN]) + (", ..." if len(types) > _SHOWN else "")
    place = f", called at {line}" if line else ""
    return f"{operator}({shown}) on device '{NAME}:{index}'{place}"
