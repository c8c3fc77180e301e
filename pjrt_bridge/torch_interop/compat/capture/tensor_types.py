"""Tensors that are made by a call of their type, as `torch.LongTensor([n])`, of sizes.

Dynamo takes the values of the sizes for them. While it traces for this backend, `torch.tensor`
makes them, which keeps symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._dynamo.utils import tensortype_to_dtype
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lists import BaseListVariable, ListVariable, TupleVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable

from pjrt_bridge.torch_interop.compat.capture.sized_calls import inlined

_DTYPES: Mapping[Any, torch.dtype | None] = {
    torch.Tensor: None,
    **{made: dtypes[0] for made, dtypes in tensortype_to_dtype.items()},
}
"""By the type, the element type of what its call makes; None is the default one."""


def trace_tensor_types(is_for_us: Callable[[Any], bool]) -> None:
    """Have Dynamo trace `torch.tensor` for calls of these types with lists that hold sizes.

    Args:
        is_for_us: says of Dynamo's translator whether it traces for this backend.
    """
    before = UserDefinedClassVariable.call_function

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.value in _DTYPES and is_for_us(tx) and len(args) == 1 and not kwargs:
            data = args[0].realize()
            # A shape, as in `torch.Tensor(x.shape)`, says how large the tensor is.
            if type(data) in (ListVariable, TupleVariable) and _holds_sizes(data):
                dtype = VariableTracker.build(tx, _DTYPES[self.value])
                return inlined(tx, _of_numbers, (data, dtype), {})
        return before(self, tx, args, kwargs)

    UserDefinedClassVariable.call_function = call_function  # type: ignore[method-assign]


def _of_numbers(data: Any, dtype: torch.dtype | None) -> torch.Tensor:
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return torch.tensor(data, dtype=dtype, device="cpu")


def _holds_sizes(data: Any) -> bool:
    """Whether a list that is traced holds numbers alone, some of them symbols."""
    numbers = _leaves(data)
    return any(isinstance(one, SymNodeVariable) for one in numbers) and all(
        isinstance(one, SymNodeVariable) or one.is_python_constant() for one in numbers
    )


def _leaves(data: Any) -> list[Any]:
    items = [item.realize() for item in data.items]
    return [
        leaf
        for item in items
        for leaf in (_leaves(item) if isinstance(item, BaseListVariable) else [item])
    ]
