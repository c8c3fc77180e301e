"""Whether an array has no two elements at one address."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

_ENUMERATED = 1_000_000
"""Elements of an array whose places are listed where its strides leave it open."""


def lie_apart(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether no two elements of an array lie in one place.

    Args:
        shape: of the array.
        strides: of it, in any unit that is no less than an element.

    Returns:
        False, too, of an array with over a million elements whose strides leave it open.
    """
    dims = sorted((abs(step), size) for step, size in zip(strides, shape, strict=True) if size != 1)
    if any(not size for _, size in dims):
        return True
    span = 0
    for step, size in dims:
        if step <= span:
            return bool(step) and _are_distinct(dims)
        span += step * (size - 1)
    return True


def _are_distinct(dims: Sequence[tuple[int, int]]) -> bool:
    count = math.prod(size for _, size in dims)
    if count > _ENUMERATED:
        return False
    places = reduce(np.add.outer, (step * np.arange(size) for step, size in dims))
    return bool(np.unique(places).size == count)
