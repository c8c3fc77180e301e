"""`torch.accelerator` for a device that is registered from Python.

Its functions ask C++ of the device for an allocator, which such a device does not have: those of
memory raise internal errors, `empty_host_cache` ends the process, and the current device is always
the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch.accelerator import memory


def answer_for(kind: str, answers: Mapping[str, Callable[..., Any]]) -> None:
    """Have functions of `torch.accelerator` call others where the accelerator is of one kind.

    Args:
        kind: the type of the device.
        answers: by the names of the functions; those that this torch lacks are left out.
    """
    for name, answer in answers.items():
        for module in (torch.accelerator, memory):
            function = getattr(module, name, None)
            if function is not None:
                setattr(module, name, _for_kind(kind, function, answer))


def _for_kind(
    kind: str, function: Callable[..., Any], answer: Callable[..., Any]
) -> Callable[..., Any]:
    @wraps(function)
    def ask(*args: Any, **kwargs: Any) -> Any:
        found = torch.accelerator.current_accelerator()
        is_asked = found is not None and found.type == kind
        return (answer if is_asked else function)(*args, **kwargs)

    return ask
