"""Example inputs from short descriptions, for commands that call a function of the user's.

What a description says is the same for every framework; each makes its own tensors of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pjrt_bridge.errors import DataError, UnsupportedDtype

_SIZES = r"\s*(\d+\s*(,\s*\d+\s*)*,?)?\s*"
_SPEC = re.compile(rf"(?P<element>\w+)\[(?P<shape>{_SIZES})\](<(?P<limit>\d+))?")
_LIMIT = 2
"""Random integers are below it where nothing else is said: indices of almost any table."""

Tensor = TypeVar("Tensor")


@dataclass(frozen=True)
class Numbers:
    """Random numbers that a description asks for.

    Attributes:
        element: their type as StableHLO spells it, or what the user wrote in its place.
        shape: elements per dimension.
        limit: integers are from 0 to below it.
    """

    element: str
    shape: tuple[int, ...]
    limit: int


def read(
    text: str,
    draw: Callable[[Numbers], Tensor],
    adopt: Callable[[Any], Tensor],
    *also: str,
) -> Tensor:
    """One argument: a `.npy` file, or random numbers of a type and shape.

    Args:
        text: a path, or `f32[8,64]`, `i64[4,128]<1000` (below 2 without a limit), `f32[]`.
        draw: makes a tensor of random numbers; raises UnsupportedDtype for types without one.
        adopt: makes a tensor of a NumPy array; raises ValueError or TypeError where there is none.
        also: examples of what else the framework takes, for messages.

    Raises:
        DataError: neither a description nor a file that can be read.
    """
    found = _SPEC.fullmatch(text.strip())
    if found is None:
        return _from_file(text, adopt, also)
    shape = tuple(int(size) for size in found["shape"].split(",") if size.strip())
    try:
        return draw(Numbers(found["element"], shape, int(found["limit"] or _LIMIT)))
    except UnsupportedDtype as error:
        raise DataError(f"input {text!r}: {error}") from error


def _from_file(path: str, adopt: Callable[[Any], Tensor], also: tuple[str, ...]) -> Tensor:
    if not Path(path).is_file():
        *others, last = ["f32[8,64]", "i64[4,128]<1000", *also]
        raise DataError(
            f"input {path!r}: no such file, and no description such as "
            f"{', '.join(map(repr, others))} or {last!r}"
        )
    try:
        return adopt(np.load(path, allow_pickle=False))
    except (ValueError, EOFError, TypeError) as error:
        raise DataError(f"input {path}: cannot be read as a .npy file: {error}") from error
