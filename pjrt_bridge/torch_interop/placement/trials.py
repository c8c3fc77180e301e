"""Calls of operators that are tried once, in PyTorch, on small tensors of known element types."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import product
from typing import Any

import torch
from torch.fx.node import map_aggregate

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop import compat

MOST_ELEMENTS = 1 << 12
"""Tensors with more elements in all are replaced by smaller ones."""

LARGEST_SIZE = 8
"""The largest size that is not replaced in them."""


class TrialGenerator:
    """Stands for a generator among arguments."""

    def __repr__(self) -> str:
        return "generator"


class Trial:
    """A call as the key of a cache.

    Args:
        target: the operator.
        arguments: a `TensorType` in place of each tensor.
        promised: the sizes are those of a call, so that every error counts.
    """

    def __init__(self, target: compat.OpOverload, arguments: Any, promised: bool) -> None:
        self.target = target
        self.arguments = arguments
        self.promised = promised
        deterministic = torch.are_deterministic_algorithms_enabled()
        self._key = (target, repr(arguments), promised, deterministic)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trial) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=4096)
def error_of_trial(call: Trial) -> str | None:
    """The error of PyTorch in a call; None where it raises none that counts."""
    with compat.untraced(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Zeros are valid positions, but not divisors, so ones are tried next.
        error = _error_of(call, torch.zeros)
        if error is not None:
            error = _error_of(call, torch.ones)
        if error is None or (not call.promised and not _is_fault_of_types(call)):
            return None
    return error


def _is_fault_of_types(call: Trial) -> bool:
    """Whether a refusal of replaced sizes is due to element types, and not to the replaced sizes.

    Fake tensors accept them, and so do the kernels with common element types and no empty tensor.
    """
    try:
        with compat.errors_unlogged():
            compat.promise_of_call(call.target, *_tensors(call.arguments, torch.zeros))
    except Exception:
        return False
    changes: tuple[Callable[[TensorType], TensorType], ...] = (_as_float, _as_any_float, _filled)
    types = types_in(call.arguments)
    for change in (*changes, *_common(len(types))):
        plain = Trial(call.target, _with_types(call.arguments, change), promised=False)
        if _error_of(plain, torch.zeros) is None or _error_of(plain, torch.ones) is None:
            return True
    return False


_FLOAT, _INTEGER = dtypes.of("float32"), dtypes.of("int64")

_TENSORS = 4
"""Of calls with more tensors not every combination of common element types is tried."""


def _common(count: int) -> Iterator[Callable[[TensorType], TensorType]]:
    """Changes of tensors, in order, to the common element types, in each combination."""
    for chosen in product((_FLOAT, _INTEGER), repeat=count) if count <= _TENSORS else ():
        yield partial(_as_next, iter(chosen))


def _as_next(types: Iterator[dtypes.DType], found: TensorType) -> TensorType:
    return TensorType(found.shape, next(types))


def _as_float(found: TensorType) -> TensorType:
    return TensorType(found.shape, _FLOAT)


def _as_any_float(found: TensorType) -> TensorType:
    return found if found.dtype.is_integer or found.dtype.is_bool else _as_float(found)


def _filled(found: TensorType) -> TensorType:
    return TensorType(tuple(size or LARGEST_SIZE for size in found.shape), found.dtype)


def _with_types(arguments: Any, change: Callable[[TensorType], TensorType]) -> Any:
    """Arguments with other types in place of their tensors."""
    return map_aggregate(
        arguments, lambda item: change(item) if isinstance(item, TensorType) else item
    )


def _error_of(call: Trial, fill: Callable[..., torch.Tensor]) -> str | None:
    try:
        args, kwargs = _tensors(call.arguments, fill)
        call.target(*args, **kwargs)
    except NotImplementedError as error:
        # A kernel may exist for a device that is not present.
        return None if str(error).startswith("Could not run") else _first_line(error)
    except Exception as error:
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _tensors(arguments: Any, fill: Callable[..., torch.Tensor]) -> Any:
    """Arguments with tensors in place of their types."""

    def tensor(item: Any) -> Any:
        if isinstance(item, TensorType):
            large = item.size > MOST_ELEMENTS
            shape = (1,) * len(item.shape) if large else item.shape
            filled = fill(shape, dtype=getattr(torch, str(item.dtype.torch)))
            return filled.expand(item.shape) if large else filled
        return torch.Generator() if isinstance(item, TrialGenerator) else item

    return map_aggregate(arguments, tensor)


def types_in(arguments: Any) -> list[TensorType]:
    """The types of tensors in nested arguments or results, in order."""
    found: list[TensorType] = []
    map_aggregate(
        arguments, lambda item: found.append(item) if isinstance(item, TensorType) else None
    )
    return found
