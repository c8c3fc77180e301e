"""Elements at positions that depend on no argument, read as slices.

Rolls, reflected and repeated borders, windows and selections of every other element come as
positions that a program computes of nothing else than their own numbers. Where such positions are
few sequences of equal distances, slices of the array have the same elements, which compilers and
kernels copy as they lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.orders import operation_of, row_major_steps
from pjrt_bridge.stablehlo.kernel_attributes import Assembly, AssemblyBox
from pjrt_bridge.stablehlo.known_numbers import COMPARED, direction_of, dtype_of

_MOST_ELEMENTS = 1 << 17
"""Positions up to which they are computed here."""

_DEPTH = 24
"""Operations that are followed, one behind the other."""

_MOST_RUNS = 8
"""Slices that take the place of positions."""

_ConstantPositions = np.ndarray[Any, np.dtype[Any]]


class Run(NamedTuple):
    """Positions at equal distances.

    Attributes:
        first: the first of them.
        size: how many there are.
        step: from one to the next; 0 where it is the same one.
    """

    first: int
    size: int
    step: int


def constant_positions(index: Value, length: int) -> _ConstantPositions | None:
    """Positions as they are, those out of range moved to the nearest that are not.

    Args:
        index: integers.
        length: of the dimension that they are positions of.

    Returns:
        int64, of the shape of the index; None where an argument is needed to compute them.
    """
    if not length or not 0 < index.size <= _MOST_ELEMENTS:
        return None
    found = _computed(index._handle, _DEPTH, {})
    return None if found is None else np.clip(found, 0, length - 1).astype(np.int64)


def runs_of(positions: _ConstantPositions) -> list[Run] | None:
    """Positions as few runs; None where these are more.

    Args:
        positions: one dimension, not empty.
    """
    steps = np.diff(positions)
    runs: list[Run] = []
    at = 0
    while at < len(positions):
        if len(runs) == _MOST_RUNS:
            return None
        step = int(steps[at]) if at < len(steps) else 0
        others = np.flatnonzero(steps[at:] != step)
        count = int(others[0]) + 1 if others.size else len(positions) - at
        runs.append(Run(int(positions[at]), count, step if count > 1 else 0))
        at += count
    return runs


def read_runs(b: Builder, x: Value, dim: int, runs: Sequence[Run]) -> Value:
    """The elements of an array at positions along a dimension.

    Args:
        b: the builder to emit into.
        x: the array.
        dim: the dimension.
        runs: the positions.
    """
    parts = [_read(b, x, dim, run) for run in runs]
    return parts[0] if len(parts) == 1 else b.concatenate(parts, dim)


def windows_of(x: Value, dim: int, positions: _ConstantPositions) -> Assembly | None:
    """The elements of an array in windows of one length that follow each other at one distance.

    Args:
        x: the array.
        dim: along which they are.
        positions: one dimension.

    Returns:
        With two dimensions, of windows and of the elements of each, in the place of `dim`; None
        where positions are no such windows.
    """
    breaks = np.flatnonzero(np.diff(np.diff(positions)))
    length = int(breaks[0]) + 2 if breaks.size else 0
    if not length or positions.size % length:
        return None
    windows = positions.reshape(-1, length)
    far, near = (int(windows[1, 0] - windows[0, 0]), int(windows[0, 1] - windows[0, 0]))
    first = int(windows[0, 0])
    expected = first + far * np.arange(len(windows))[:, None] + near * np.arange(length)
    if not np.array_equal(windows, expected):
        return None
    shape = (*x.shape[:dim], *windows.shape, *x.shape[dim + 1 :])
    steps = row_major_steps(x.shape)
    along = (far * steps[dim], near * steps[dim])
    box = AssemblyBox(
        source=0,
        begin=(0,) * len(shape),
        sizes=shape,
        first=first * steps[dim],
        steps=(*steps[:dim], *along, *steps[dim + 1 :]),
    )
    return Assembly(shape, (box,))


def _read(b: Builder, x: Value, dim: int, run: Run) -> Value:
    """The elements of one run."""
    last = run.first + (run.size - 1) * run.step
    low, high = min(run.first, last), max(run.first, last)
    starts, limits, strides = [0] * x.rank, list(x.shape), [1] * x.rank
    starts[dim], limits[dim], strides[dim] = low, high + 1, max(1, abs(run.step))
    is_whole = (low, high + 1, strides[dim]) == (0, x.shape[dim], 1)
    part = x if is_whole else b.slice(x, starts, limits, strides)
    if run.step < 0:
        return b.reverse(part, [dim])
    if run.step or run.size == 1:
        return part
    shape = (*x.shape[:dim], run.size, *x.shape[dim + 1 :])
    return b.broadcast_in_dim(part, shape, range(x.rank))


_COMPUTED: Mapping[str, Callable[..., Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.multiply": np.multiply,
    "stablehlo.negate": np.negative,
    "stablehlo.select": np.where,
    "stablehlo.subtract": np.subtract,
}


def _computed(
    value: Any, depth: int, known: dict[Any, _ConstantPositions | None]
) -> _ConstantPositions | None:
    """A value of integers or bool that needs no argument; None of another one.

    Args:
        value: of the program.
        depth: operations that are followed from it.
        known: values that were computed before.
    """
    if value not in known:
        known[value] = _followed(value, depth, known)
    return known[value]


def _followed(
    value: Any, depth: int, known: dict[Any, _ConstantPositions | None]
) -> _ConstantPositions | None:
    made, dtype = operation_of(value), dtype_of(value)
    if made is None or not depth or not (dtype.is_integer or str(dtype) == "bool"):
        return None
    shape = tuple(value.type.shape)
    if math.prod(shape) > _MOST_ELEMENTS:
        return None
    if made.name == "stablehlo.constant":
        return _constant(made, shape)
    if made.name == "stablehlo.iota":
        at = int(made.attributes["iota_dimension"])
        along = np.arange(shape[at], dtype=dtype.numpy)
        return np.broadcast_to(along.reshape([-1, *(1 for _ in shape[at + 1 :])]), shape)
    operands = list[_ConstantPositions]()
    for item in made.operands:
        operand = _computed(item, depth - 1, known)
        if operand is None:
            return None
        operands.append(operand)
    with np.errstate(all="ignore"):
        return _of_operands(made, operands, shape, dtype) if operands else None


def _of_operands(
    made: Any, operands: Sequence[_ConstantPositions], shape: tuple[int, ...], dtype: dtypes.DType
) -> _ConstantPositions | None:
    """The result of an operation; None of one that positions are not made of."""
    if made.name == "stablehlo.reshape":
        return operands[0].reshape(shape)
    if made.name == "stablehlo.convert":
        return operands[0].astype(dtype.numpy)
    if made.name == "stablehlo.broadcast_in_dim":
        sizes = [1] * len(shape)
        dims = [int(dim) for dim in made.attributes["broadcast_dimensions"]]
        for dim, size in zip(dims, operands[0].shape, strict=True):
            sizes[dim] = size
        order = sorted(range(len(dims)), key=dims.__getitem__)
        return np.broadcast_to(operands[0].transpose(order).reshape(sizes), shape)
    if made.name == "stablehlo.compare":
        return np.asarray(COMPARED[direction_of(made)](*operands))
    if made.name == "stablehlo.remainder" and operands[1].all():
        # The sign is that of the dividend (StableHLO specification, "remainder").
        return np.asarray(np.fmod(*operands), dtype.numpy)
    compute = _COMPUTED.get(made.name)
    return None if compute is None else np.asarray(compute(*operands), dtype.numpy)


def _constant(made: Any, shape: tuple[int, ...]) -> _ConstantPositions | None:
    elements = made.attributes["value"]
    if elements.is_splat:
        return np.full(shape, elements.get_splat_value().value)
    try:
        return np.array(elements).reshape(shape)
    except (TypeError, ValueError):
        return None
