"""Tensors for arguments of foreign functions: of numbers, and of random keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_KEY = 2
"""Integers of 32 bits in a random key."""


def is_tensor(value: object) -> bool:
    """Whether an argument is a tensor."""
    return isinstance(value, torch.Tensor)


def is_compiling() -> bool:
    """Whether Dynamo traces the caller."""
    return torch.compiler.is_compiling()


def is_number(value: object) -> bool:
    """Whether an argument is a number of Python, or stands for one."""
    return isinstance(value, (bool, int, float, complex, torch.SymInt, torch.SymFloat))


def as_tensors(leaves: Sequence[Any]) -> list[torch.Tensor]:
    """Tensors of the same numbers, on the device of the tensors among them.

    Numbers have 64 bits only beside floats that do.
    """
    device = next((leaf.device for leaf in leaves if is_tensor(leaf)), torch.device("cpu"))
    wide = any(
        is_tensor(leaf) and leaf.dtype in (torch.float64, torch.complex128) for leaf in leaves
    )
    return [leaf if is_tensor(leaf) else _tensor(leaf, wide, device) for leaf in leaves]


def _tensor(number: Any, wide: bool, device: torch.device) -> torch.Tensor:
    if isinstance(number, bool):
        dtype = torch.bool
    elif isinstance(number, (int, torch.SymInt)):
        dtype = torch.int64 if wide else torch.int32
    elif isinstance(number, complex):
        dtype = torch.complex128 if wide else torch.complex64
    else:
        dtype = torch.float64 if wide else torch.float32
    return torch.full((), number, dtype=dtype, device=device)


def random_key(leaves: Sequence[Any]) -> torch.Tensor:
    """Bits of a random key, drawn from torch's generator of the device of the leaves."""
    device = next((leaf.device for leaf in leaves if is_tensor(leaf)), torch.device("cpu"))
    return torch.randint(-(2**31), 2**31, (_KEY,), dtype=torch.int32, device=device)
