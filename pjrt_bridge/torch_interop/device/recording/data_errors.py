"""Errors for the data of a call: those that PyTorch's own operator raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pjrt_bridge.errors import OutOfRange, PjrtBridgeError
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.torch_interop.resident.client import failures
from pjrt_bridge.torch_interop.resident.storages import transfer
from pjrt_bridge.torch_interop.resident.storages.storage import resident_tensor


def refusal(
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
        operator: its name.
        index: of the device.
        line: see `failures.told`.
    """
    if isinstance(error, PjrtBridgeError) and not isinstance(error, OutOfRange):
        return None
    try:
        again([item if isinstance(item, torch.Tensor) else _fetched(item, index) for item in given])
    except Exception as raised:
        types = [
            transfer.type_of(item) if isinstance(item, torch.Tensor) else item.type
            for item in given
        ]
        raised.add_note(f"{error}: {failures.described(operator, types, index, line)}")
        return raised
    return None


def _fetched(buffer: AnyBuffer, index: int) -> torch.Tensor:
    return transfer.to_host(resident_tensor(buffer, ValueSpec.row_major(buffer.type), index))
