"""Tensors of one whole number that is made of sizes, where a size is read from them.

Models divide sizes by `torch.div`, which gives a tensor, and give that to `view`. Others calculate
paddings with numbers that are in buffers. Dynamo ends the graph there, as the number in a tensor is
data. While it traces for this backend, it also keeps the number that such a tensor has, as a
symbol, until something else than arithmetic uses the tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from pjrt_bridge.torch_interop.compat.capture.kept_numbers import (
    KeptNumber,
    calculated,
    forget,
    is_kept,
    keep,
    kept,
    number_of,
    quotient,
    rounded,
    shifted,
    value_of,
    with_numbers,
)

_WHOLE = frozenset(
    (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg)
)
"""Operators that give the same whole numbers for tensors as for numbers."""

_TAKE_SIZES = frozenset(
    (
        *("view", "reshape", "expand", "repeat", "as_strided", "narrow", "unflatten"),
        *("new_zeros", "new_ones", "new_empty", "new_full", "roll", "split", "tril", "triu"),
    )
)
"""Methods whose arguments are sizes, or are numbers where they are tensors."""

_FUNCTIONS_OF_SIZES = frozenset(
    (
        *(torch._C._nn.pad, torch.constant_pad_nd, torch.narrow, torch.roll, torch.split),
        *(torch.zeros, torch.ones, torch.empty, torch.full, torch.arange, torch.eye),
        *(torch.tril, torch.triu),
    )
)
"""Functions whose arguments are sizes, or are numbers where they are tensors."""

_CLAMPING = frozenset(("clamp", "clip", torch.clamp, torch.clip))
"""Methods and functions with two bounds, which are numbers if one of them is."""

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
        if self.value in _FUNCTIONS_OF_SIZES or _clamps_by_numbers(self.value, args[1:], kwargs):
            args = [with_numbers(tx, item) for item in args]
            kwargs = {key: with_numbers(tx, item) for key, item in kwargs.items()}
        if number is None:
            # What it is made of may be written through what it makes.
            forget(tx, (*args, *kwargs.values()))
        made = before(self, tx, args, kwargs)
        return made if number is None else keep(tx, made, number)

    TorchInGraphFunctionVariable.call_function = call_function  # type: ignore[method-assign]


def _clamps_by_numbers(function: Any, bounds: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether it clamps, and torch reads both bounds as numbers because one of them is one."""
    if function not in _CLAMPING:
        return False
    given = [item.realize() for item in (*bounds, *named.values())]
    return any(not isinstance(item, TensorVariable) and not _is_none(item) for item in given)


def _is_none(item: Any) -> bool:
    return bool(item.is_python_constant()) and item.as_python_constant() is None


_ROUNDING = {torch.ceil: True, torch.floor: False}
"""Functions that round, and whether up."""


def _number_made(function: Any, tx: Any, args: Sequence[Any], kwargs: Any) -> KeptNumber | None:
    """The number in the tensor that a function makes; None where that is not known."""
    if function is torch.tensor and len(args) == 1 and not kwargs:
        return number_of(tx, args[0])
    if function in _ROUNDING and len(args) == 1 and not kwargs:
        return _rounded(number_of(tx, args[0]), up=_ROUNDING[function])
    numbers = [number_of(tx, item) for item in args]
    if function in _CHOOSING and not kwargs:
        return _calculated(function, numbers)
    if function not in (torch.div, torch.floor_divide):
        return None
    if len(numbers) != 2 or not all(item is not None and item.is_whole for item in numbers):
        return None
    number, divisor = (item for item in numbers if item is not None)
    if function is torch.floor_divide:
        return None if kwargs else calculated(_floored, number, divisor)
    mode = kwargs.get("rounding_mode")
    if mode is None:
        return None if kwargs else quotient(number, divisor)
    if len(kwargs) != 1 or not mode.is_python_constant():
        return None
    division = {"trunc": _truncated, "floor": _floored}.get(str(mode.as_python_constant()))
    return None if division is None else calculated(division, number, divisor)


def _rounded(number: KeptNumber | None, *, up: bool) -> KeptNumber | None:
    return None if number is None or number.divisor is None else rounded(number, up=up)


def _floored(number: int, divisor: int) -> int | None:
    return number // divisor if divisor != 0 else None


def _truncated(number: int, divisor: int) -> int | None:
    """The quotient without what is behind the point."""
    if divisor == 0:
        return None
    return number // divisor if (number < 0) == (divisor < 0) else -(-number // divisor)


def _trace_operators(is_for_us: Callable[[Any], bool]) -> None:
    before = BuiltinVariable._handle_insert_op_in_graph

    def _handle_insert_op_in_graph(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if not is_for_us(tx) or not any(is_kept(tx, item) for item in args):
            return before(self, tx, args, kwargs)
        if self.fn in _COMPARISONS and _decides(tx):
            values = [value_of(tx, item) for item in args]
            if None not in values:
                return self.call_function(tx, values, {})
        number = _calculated(self.fn, [number_of(tx, item) for item in args])
        if self.fn in _IN_PLACE:
            forget(tx, args)
        made = before(self, tx, args, kwargs)
        return made if number is None or made is None else keep(tx, made, number)

    BuiltinVariable._handle_insert_op_in_graph = (  # type: ignore[method-assign]
        _handle_insert_op_in_graph
    )


def _calculated(function: Any, numbers: Sequence[KeptNumber | None]) -> KeptNumber | None:
    """The number in the tensor that an operator makes; None where that is not known."""
    known = [one for one in numbers if one is not None]
    if len(known) != len(numbers):
        return None
    if all(one.is_whole for one in known):
        if function is operator.truediv:
            return quotient(*known)
        if function in _OTHERWISE:
            return calculated(_OTHERWISE[function], *known)
        return calculated(function, *known) if function in _WHOLE else None
    if function not in (operator.add, operator.sub) or len(known) != 2:
        return None
    first, second = known
    if function is operator.add and first.is_whole:
        first, second = second, first
    if first.divisor is None or not second.is_whole:
        return None
    return shifted(first, second, up=function is operator.add)


def _remaining(number: int, divisor: int) -> int | None:
    return number % divisor if divisor != 0 else None


_CHOOSING: dict[Any, Callable[..., Any]] = {torch.maximum: max, torch.minimum: min}
_OTHERWISE: dict[Any, Callable[..., Any]] = {
    operator.floordiv: _floored,
    operator.mod: _remaining,
    **_CHOOSING,
}
"""Operators of which something else is calculated for numbers."""
_IN_PLACE = frozenset(
    function for name, function in vars(operator).items() if name.startswith("__i")
) - {operator.__invert__, operator.__index__, operator.__inv__}
_COMPARISONS = frozenset(
    (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
)


def _decides(tx: Any) -> bool:
    """Whether the code that is traced goes on here or there by what it has just compared."""
    following = tx.instructions[tx.instruction_pointer :]
    names = (item.opname for item in following)
    first = next((name for name in names if name not in ("TO_BOOL", "CACHE", "NOP")), "")
    return first.startswith("POP_JUMP_")


def _trace_methods(is_for_us: Callable[[Any], bool]) -> None:
    before = TensorVariable.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if not is_for_us(tx) or not (kept(tx) or is_kept(tx, self)):
            return before(self, tx, name, args, kwargs)
        if name in _NUMBERS and not args and not kwargs:
            number = value_of(tx, self)
            if number is not None:
                return number
        if name in _TAKE_SIZES or _clamps_by_numbers(name, args, kwargs):
            args = [with_numbers(tx, item) for item in args]
            kwargs = {key: with_numbers(tx, item) for key, item in kwargs.items()}
        number = None if kwargs else _of_method(number_of(tx, self), name, args)
        if number is not None:
            return keep(tx, before(self, tx, name, args, kwargs), number)
        forget(tx, (self, *args, *kwargs.values()))
        return before(self, tx, name, args, kwargs)

    TensorVariable.call_method = call_method  # type: ignore[method-assign]


def _of_method(number: KeptNumber | None, name: str, args: Sequence[Any]) -> KeptNumber | None:
    """The number in the tensor that a method gives, which is not the same tensor."""
    if number is None:
        return None
    if name in ("ceil", "floor") and not args:
        return _rounded(number, up=name == "ceil")
    types = [item.as_python_constant() for item in args if item.is_python_constant()]
    to_whole = (name == "long" and not args) or (name == "to" and types == [torch.int64])
    if to_whole and len(types) == len(args) and number.is_floating and number.divisor is None:
        return KeptNumber(number.make)
    return None
