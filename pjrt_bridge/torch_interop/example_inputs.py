"""Example inputs from short descriptions, for commands that call a function of the user's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pjrt_bridge import dtypes
from pjrt_bridge.errors import DataError, UnsupportedDtype
from pjrt_bridge.torch_interop.tensors import torch_dtype

_SPEC = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d,\s]*)\](<(?P<limit>\d+))?")
_LIMIT = 2
"""Random integers are below it where nothing else is said: indices of almost any table."""


def example_input(text: str) -> Any:
    """One argument: a `.npy` file, or random numbers of a type and shape.

    Args:
        text: a path, or `f32[8,64]` (normally distributed), `i64[4,128]<1000` (integers from 0 to
            below 1000; below 2 without a limit), `i1[3]` (booleans), `f32[]` (a scalar).

    Raises:
        DataError: neither a description nor a file that can be read.
    """
    found = _SPEC.fullmatch(text.strip())
    if found is None:
        return _from_file(text)
    try:
        dtype = torch_dtype(dtypes.from_stablehlo(found["dtype"]))
    except (UnsupportedDtype, AssertionError) as error:
        raise DataError(f"input {text!r}: torch has no element type {found['dtype']!r}") from error
    shape = [int(size) for size in found["shape"].split(",") if size.strip()]
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(shape, dtype=wide).to(dtype)
    return torch.randint(int(found["limit"] or _LIMIT), shape).to(dtype)


def _from_file(path: str) -> torch.Tensor:
    if not Path(path).is_file():
        raise DataError(
            f"input {path!r}: no such file, and no description such as 'f32[8,64]' or "
            "'i64[4,128]<1000'"
        )
    try:
        return torch.from_numpy(np.load(path, allow_pickle=False))
    except (ValueError, EOFError, TypeError) as error:
        raise DataError(f"input {path}: cannot be read as a .npy file: {error}") from error
