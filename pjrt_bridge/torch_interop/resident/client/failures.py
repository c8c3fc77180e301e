"""Errors of plugins with their context: the operator, its arguments and the user's line."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from pjrt_bridge.errors import (
    DeviceError,
    OutOfRange,
    PjrtError,
    ResourceExhausted,
    UnsupportedDtype,
)
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.named_device.naming import NAME

_SHOWN = 4


_LINES = 4
"""Lines kept for an operator: those that called it last."""

_lines: dict[str, list[str]] = {}
_recordings: deque[Sequence[tuple[str, str]]] = deque(maxlen=_LINES)


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


def without_type(
    error: UnsupportedDtype, operator: str, given: Iterable[TensorType], index: int
) -> DeviceError:
    """An error of an operator one of whose values has an element type that PJRT does not have.

    It is no TypeError: Python's operators take one for `NotImplemented`, and lose its text.

    Args:
        error: what was raised.
        operator: its name.
        given: the tensors of the call.
        index: of the device.
    """
    return DeviceError(
        f"{described(operator, given, index, '')}: {error}; give it tensors of other types"
    )


def called(operator: str, line: str) -> None:
    """Note a line of the user's code that calls an operator, for errors that are seen later."""
    lines = _lines.setdefault(operator, [])
    if not line:
        return
    if line in lines:
        lines.remove(line)
    lines.append(line)
    del lines[:-_LINES]


def recorded(calls: Sequence[tuple[str, str]]) -> None:
    """The same, of operators that became one program: their names and lines, in order."""
    _recordings.append(calls)


@contextmanager
def seen_later() -> Iterator[None]:
    """Have errors of programs that were started before name lines that called their operators."""
    try:
        yield
    except PjrtError as error:
        while _recordings:
            for operator, line in _recordings.popleft():
                called(operator, line)
        for operator, lines in _lines.items():
            if f"{operator}: " in str(error) and lines:
                error.add_note(
                    f"{operator} was called last at {', '.join(reversed(lines))}; with "
                    "PJRT_BRIDGE_EAGER=sync the error is raised where the call is"
                )
        raise


def described(operator: str, given: Iterable[TensorType], index: int, line: str) -> str:
    """A call in the text of an error; see `told`."""
    types = list(map(str, given))
    shown = ", ".join(types[:_SHOWN]) + (", ..." if len(types) > _SHOWN else "")
    place = f", called at {line}" if line else ""
    return f"{operator}({shown}) on device '{NAME}:{index}'{place}"
