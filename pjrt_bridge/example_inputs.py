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
_NPY = b"\x93NUMPY"
_ZIP = b"PK"
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
        return adopt(load_array(Path(path)))
    except DataError as error:
        raise DataError(f"input {path}: {error}") from error
    except (ValueError, TypeError) as error:
        raise DataError(f"input {path}: cannot be taken as an input: {error}") from error


def load_array(path: Path) -> np.ndarray[Any, Any]:
    """The array of a `.npy` file.

    Raises:
        DataError: no such file, or another one; the text says how to write one.
    """
    written = "numpy.save('x.npy', array) writes one"
    if not path.is_file():
        raise DataError(f"found no such file, expected a .npy file; {written}")
    try:
        with path.open("rb") as file:
            start = file.read(len(_NPY))
            file.seek(0)
            if start == _NPY:
                return np.load(file, allow_pickle=False)  # type: ignore[no-any-return]
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}") from error
    except Exception as error:
        # NumPy evaluates the header as Python, and lets errors of that pass.
        if "allow_pickle" in str(error):
            found = "found an array of Python objects, expected numbers"
            raise DataError(f"{found}; {written}") from None
        raise DataError(f"cannot be read as a .npy file: {error}") from error
    if start.startswith(_ZIP):
        raise DataError(f"holds several arrays, expected a .npy file with one; {written}")
    raise DataError(f"found a file that begins with {start!r}, expected a .npy file; {written}")
