"""Tensors of one whole number that is made of sizes, where a size is read from them.

Models divide sizes by `torch.div`, which gives a tensor, and give that to `view`. Dynamo ends the
graph there, as the number in a tensor is data. While it traces for this backend, it also keeps the
number that such a tensor has, as a symbol, until something else than arithmetic uses the tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.lists import ListVariable, TupleVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

_WHOLE = frozenset(
    (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg)
)
"""Operators that give the same whole numbers for tensors as for numbers."""

_TAKE_SIZES = frozenset(
    (
        *("view", "reshape", "expand", "repeat", "as_strided", "narrow", "unflatten"),
        *("new_zeros", "new_ones", "new_empty", "new_full"),
    )
)
"""Methods whose arguments are sizes, or are numbers where they are tensors."""

_NUMBERS = frozenset(("item", "tolist", "__int__", "__index__"))
"""Methods that give the number in a tensor."""


def trace_numbers_in_tensors(is_for_us: Callable[[Any], bool]) -> None:
    """Have Dynamo keep the numbers that tensors are made of, where these are known or symbols.

    Args:
        is_for_us: says of Dynamo's translator whether it traces for this backend.
    """
    _trace_functions(is_for_us)
    _trace_operators(is_for_us)
    _trace_methods(is_for_us)


def _trace_functions(is_for_us: Callable[[Any], bool]) -> None:
    before = TorchInGraphFunctionVariable.call_function

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if not is_for_us(tx):
            return before(self, tx, args, kwargs)
        number = _number_made(self.value, tx, args, kwargs)
        if number is None:
            # What it is made of may be written through what it makes.
            _forget(tx, (*args, *kwargs.values()))
        made = before(self, tx, args, kwargs)
        return made if number is None else _keep(tx, made, number)

    TorchInGraphFunctionVariable.call_function = call_function  # type: ignore[method-assign]


def _number_made(function: Any, tx: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """The number in the tensor that a function makes; None where that is not known."""
    if function is torch.tensor and len(args) == 1 and not kwargs:
        return args[0].realize() if _is_whole(args[0].realize()) else None
    mode = kwargs.get("rounding_mode")
    division: Callable[[int, int], int] | None
    if function is torch.div and len(kwargs) == 1 and mode is not None:
        rounded = mode.realize().as_python_constant() if mode.is_python_constant() else None
        division = {"trunc": _truncated, "floor": operator.floordiv}.get(str(rounded))
    else:
        division = operator.floordiv if function is torch.floor_divide and not kwargs else None
    numbers = [_number(tx, item) for item in args]
    if division is None or len(numbers) != 2 or None in numbers:
        return None
    divisor = numbers[1]
    if not divisor.is_python_constant() or divisor.as_python_constant() == 0:
        return None
    return _called(tx, division, numbers)


def _called(tx: Any, function: Callable[..., int], numbers: Sequence[Any]) -> Any:
    return VariableTracker.build(tx, function).call_function(tx, list(numbers), {})


def _truncated(number: int, divisor: int) -> int:
    """The quotient without what is behind the point."""
    return number // divisor if (number < 0) == (divisor < 0) else -(-number // divisor)


def _trace_operators(is_for_us: Callable[[Any], bool]) -> None:
    before = BuiltinVariable._handle_insert_op_in_graph

    def _handle_insert_op_in_graph(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if not is_for_us(tx) or not any(_is_kept(tx, item) for item in args):
            return before(self, tx, args, kwargs)
        numbers = [_number(tx, item) for item in args]
        if self.fn not in _WHOLE:
            if self.fn in _IN_PLACE:
                _forget(tx, args)
            return before(self, tx, args, kwargs)
        known = None not in numbers and not (self.fn in _DIVIDING and not _is_divisor(numbers[1]))
        number = _called(tx, self.fn, numbers) if known else None
        made = before(self, tx, args, kwargs)
        return made if number is None or made is None else _keep(tx, made, number)

    BuiltinVariable._handle_insert_op_in_graph = (  # type: ignore[method-assign]
        _handle_insert_op_in_graph
    )


_DIVIDING = (operator.floordiv, operator.mod)
_IN_PLACE = frozenset(
    function for name, function in vars(operator).items() if name.startswith("__i")
) - {operator.__invert__, operator.__index__, operator.__inv__}


def _is_divisor(number: Any) -> bool:
    return bool(number.is_python_constant() and number.as_python_constant() != 0)


def _trace_methods(is_for_us: Callable[[Any], bool]) -> None:
    before = TensorVariable.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if not is_for_us(tx) or not _kept(tx):
            return before(self, tx, name, args, kwargs)
        number = _number(tx, self)
        if number is not None and name in _NUMBERS and not args and not kwargs:
            return number
        if name in _TAKE_SIZES:
            args = [_with_numbers(tx, item) for item in args]
            kwargs = {key: _with_numbers(tx, item) for key, item in kwargs.items()}
        _forget(tx, (self, *args, *kwargs.values()))
        return before(self, tx, name, args, kwargs)

    TensorVariable.call_method = call_method  # type: ignore[method-assign]


# -- numbers that are kept -------------------------------------------------------------------------


def _kept(tx: Any) -> dict[Any, Any]:
    """The numbers that are kept of a graph's tensors, by node."""
    found: dict[Any, Any] = vars(tx.output).setdefault("_pjrt_bridge_numbers", {})
    return found


def _keep(tx: Any, made: Any, number: Any) -> Any:
    if isinstance(made, TensorVariable):
        _kept(tx)[made.as_proxy().node] = number
    return made


def _forget(tx: Any, used: Sequence[Any]) -> None:
    """Keep no numbers any more of tensors that may be written over."""
    for item in used if _kept(tx) else ():
        if isinstance(item, (ListVariable, TupleVariable)):
            _forget(tx, item.items)
        elif _is_kept(tx, item):
            del _kept(tx)[item.realize().as_proxy().node]


def _is_kept(tx: Any, item: Any) -> bool:
    kept = _kept(tx)
    if not kept:
        return False
    item = item.realize()
    return isinstance(item, TensorVariable) and item.as_proxy().node in kept


def _is_whole(item: Any) -> bool:
    """Whether something is a whole number."""
    if isinstance(item, SymNodeVariable):
        return item.python_type() is int
    return item.is_python_constant() and type(item.as_python_constant()) is int


def _number(tx: Any, item: Any) -> Any:
    """A number, or that of a tensor; None where it is not known."""
    item = item.realize()
    if isinstance(item, TensorVariable):
        return _kept(tx).get(item.as_proxy().node)
    return item if _is_whole(item) else None


def _with_numbers(tx: Any, item: VariableTracker) -> Any:
    """An argument with numbers in the place of the tensors that hold them."""
    item = item.realize()
    if isinstance(item, (ListVariable, TupleVariable)) and any(
        _is_kept(tx, one) for one in item.items
    ):
        return TupleVariable([_with_numbers(tx, one) for one in item.items])
    return _number(tx, item) if _is_kept(tx, item) else item
