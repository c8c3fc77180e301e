"""Errors of plugins with their context: the operator, its arguments and the user's line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from pjrt_bridge.errors import OutOfRange, PjrtBridgeError, PjrtError, ResourceExhausted
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.device import transfer
from pjrt_bridge.torch_interop.device.naming import NAME
from pjrt_bridge.torch_interop.device.storage import resident_tensor

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
    error.args = (f"{error.args[0]}: {_call(operator, given, index, line)}",)
    return error


def of_pytorch(
    error: Exception,
    again: Callable[[Sequence[torch.Tensor]], Any],
    given: Sequence[AnyBuffer | torch.Tensor],
    operator: str,
    index: int,
    line: str = "",
) -> Exception | None:
    """What PyTorch's operator raises for the data of a call that failed; None where it takes them.

    A program computes what an operator is made of: an error of that is of another kind.

    Args:
        error: of the program, or of what it is made of, on the host.
        again: computes the call in PyTorch.
        given: the arrays that the program takes.
        operator: see `told`, also for the other arguments.
        index: of the device.
        line: of the user's code.
    """
    if isinstance(error, PjrtBridgeError) and not isinstance(error, OutOfRange):
        return None
    try:
        again([item if isinstance(item, torch.Tensor) else _fetched(item, index) for item in given])
    except Exception as refusal:
        types = [
            transfer.type_of(item) if isinstance(item, torch.Tensor) else item.type
            for item in given
        ]
        refusal.add_note(f"{error}: {_call(operator, types, index, line)}")
        return refusal
    return None


def _fetched(buffer: AnyBuffer, index: int) -> torch.Tensor:
    return transfer.to_host(resident_tensor(buffer, ValueSpec.row_major(buffer.type), index))


def _call(operator: str, given: Iterable[TensorType], index: int, line: str) -> str:
    types = list(map(str, given))
    shown = ", ".join(types[:_SHOWN]) + (", ..." if len(types) > _SHOWN else "")
    place = f", called at {line}" if line else ""
    return f"{operator}({shown}) on device '{NAME}:{index}'{place}"
