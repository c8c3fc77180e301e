"""Windows that models take by strides, where gradients are calculated.

Torch makes the gradient of `as_strided` for one size of memory, wherever elements of the result
overlap: a graph for each size. Windows of a fixed length at fixed distances along one dimension are
the same view by `unfold`, whose gradient serves all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable

from pjrt_bridge.torch_interop.compat.capture.sized_calls import inlined, trace_calls
from pjrt_bridge.torch_interop.compat.promises.values import hint, is_always


def trace_strided_windows(is_for_us: Callable[[Any], bool]) -> None:
    """Have Dynamo trace windows that are taken by strides as `unfold`.

    Args:
        is_for_us: says of Dynamo's translator whether it traces for this backend.
    """
    trace_calls(torch.as_strided, _traced, is_for_us)
    before = TensorVariable.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "as_strided" and is_for_us(tx):
            found = _traced(tx, (self, *args), kwargs)
            if found is not None:
                return found
        return before(self, tx, name, args, kwargs)

    TensorVariable.call_method = call_method  # type: ignore[method-assign]


def windows(
    x: torch.Tensor, dim: int, is_divided: bool, size: int, step: int, count: int
) -> torch.Tensor:
    """Windows along a dimension, whose elements are a dimension behind it.

    Args:
        x: the tensor.
        dim: the dimension.
        is_divided: whether it is divided into this one and the next.
        size: of each window.
        step: from one to the next.
        count: how many.
    """
    rows = x.flatten(dim, dim + 1) if is_divided else x
    return rows.unfold(dim, size, step).movedim(-1, dim + 1).narrow(dim, 0, count)


@dataclass(frozen=True)
class _SymbolicStrides:
    """Sizes and strides, which may be symbols."""

    sizes: Sequence[Any]
    strides: Sequence[Any]

    def merged(self, dim: int) -> _SymbolicStrides | None:
        """With a dimension and the next as one; None where that is no view."""
        size, step = self.sizes[dim + 1], self.strides[dim + 1]
        if not is_always(self.strides[dim] == size * step):
            return None
        return _SymbolicStrides(
            [*self.sizes[:dim], self.sizes[dim] * size, *self.sizes[dim + 2 :]],
            [*self.strides[:dim], step, *self.strides[dim + 2 :]],
        )

    def windows(self, other: _SymbolicStrides, dim: int) -> tuple[int, int] | None:
        """The size of windows along a dimension, and their distance, if the other has these."""
        size, stride = other.sizes[dim + 1], hint(self.strides[dim])
        if not isinstance(size, int) or not stride:
            return None
        step = hint(other.strides[dim]) // stride
        count, length = hint(other.sizes[dim]), hint(self.sizes[dim])
        whole = (
            (other.strides[dim], step * self.strides[dim]),
            (other.strides[dim + 1], self.strides[dim]),
            *zip(self._without(dim, 1), other._without(dim, 2), strict=True),
        )
        if step < 1 or count < 1 or (count - 1) * step + size > length:
            return None
        return (size, step) if all(is_always(one == same) for one, same in whole) else None

    def _without(self, dim: int, count: int) -> list[Any]:
        parts = (self.sizes, self.strides)
        return [item for part in parts for item in (*part[:dim], *part[dim + count :])]


def _traced(tx: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    x, wanted = _asked(*args, **kwargs)
    if wanted is None:
        return None
    own = _SymbolicStrides(x.shape, x.stride())
    is_divided = len(own.sizes) == len(wanted.sizes)
    for dim in range(len(wanted.sizes) - 1):
        whole = own.merged(dim) if is_divided else own
        found = None if whole is None else whole.windows(wanted, dim)
        if found is not None:
            size = args[1] if len(args) > 1 else kwargs["size"]
            numbers = [VariableTracker.build(tx, item) for item in (dim, is_divided, *found)]
            return inlined(tx, windows, (args[0], *numbers, size.realize().items[dim]), {})
    return None


def _asked(
    x: Any = None, size: Any = None, stride: Any = None, storage_offset: Any = None
) -> tuple[Any, _SymbolicStrides | None]:
    """The tensor of a call, and the layout that it asks for; None where it is not for `windows`."""
    sizes, strides = _numbers(size), _numbers(stride)
    if not isinstance(x, TensorVariable) or sizes is None or strides is None:
        return None, None
    example = x.as_proxy().node.meta["example_value"]
    numbers = (*sizes, *strides, *example.shape, *example.stride())
    offset = None if storage_offset is None else _number(storage_offset.realize())
    if (
        not (torch.is_grad_enabled() and example.requires_grad)
        or not any(isinstance(item, torch.SymInt) for item in numbers)
        or any(hint(item) is None for item in numbers)
        or len(sizes) != len(strides)
        or len(sizes) - len(example.shape) not in (0, 1)
        or not (offset is None or is_always(offset == example.storage_offset()))
    ):
        return example, None
    return example, _SymbolicStrides(sizes, strides)


def _numbers(value: Any) -> list[Any] | None:
    """The numbers of a list that is traced."""
    value = None if value is None else value.realize()
    if not isinstance(value, BaseListVariable):
        return None
    found = [_number(item.realize()) for item in value.items]
    return None if None in found else found


def _number(value: Any) -> Any:
    """A number that is traced; None where it is not known."""
    if isinstance(value, SymNodeVariable):
        return value.sym_num
    return value.as_python_constant() if value.is_python_constant() else None
