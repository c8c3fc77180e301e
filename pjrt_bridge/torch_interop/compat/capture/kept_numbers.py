"""Numbers that tensors of one element are known to have while Dynamo traces.

A number is calculated only where it is used as a size: a guard on the value of a buffer, say, is
made for no other use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lists import ListVariable, TupleVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable

from pjrt_bridge.torch_interop.compat.capture.numbers_of_buffers import NumberOfBuffer

_EXACT = 1 << 24
"""Whole numbers below this divide in float32 to what rounds up and down as their quotient does."""


@dataclass(frozen=True)
class KeptNumber:
    """A number: whole, or a quotient of whole numbers.

    Attributes:
        make: for Dynamo's translator the number, or the quotient's numerator; None where it is not
            known.
        divisor: of a quotient.
        is_floating: whether the tensor is one of floating-point numbers.
    """

    make: Callable[[Any], Any]
    divisor: KeptNumber | None = None
    is_floating: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it is an integer, and known to be one by its type."""
        return self.divisor is None and not self.is_floating


def calculated(function: Callable[..., Any], *operands: KeptNumber) -> KeptNumber:
    """What a function of Python gives for whole numbers; a None of it is not known."""

    def make(tx: Any) -> Any:
        numbers = [one.make(tx) for one in operands]
        if None in numbers:
            return None
        made = VariableTracker.build(tx, function).call_function(tx, numbers, {})
        return made if is_whole(made) else None

    return KeptNumber(make)


def quotient(number: KeptNumber, divisor: KeptNumber) -> KeptNumber:
    """The number in the tensor that a true division of whole numbers makes."""
    return KeptNumber(number.make, divisor, is_floating=True)


def shifted(number: KeptNumber, by: KeptNumber, *, up: bool) -> KeptNumber:
    """A quotient plus or minus a whole number."""
    assert number.divisor is not None
    made = calculated(_more if up else _less, KeptNumber(number.make), by, number.divisor)
    return KeptNumber(made.make, number.divisor, is_floating=True)


def _more(number: int, by: int, divisor: int) -> int:
    return number + by * divisor


def _less(number: int, by: int, divisor: int) -> int:
    return number - by * divisor


def rounded(number: KeptNumber, *, up: bool) -> KeptNumber:
    """A quotient rounded up or down; still a floating-point number."""
    assert number.divisor is not None
    made = calculated(_up if up else _down, KeptNumber(number.make), number.divisor)
    return KeptNumber(made.make, is_floating=True)


def _up(number: int, divisor: int) -> int | None:
    exact = -_EXACT < number < _EXACT and 0 < divisor < _EXACT
    return -(-number // divisor) if exact else None


def _down(number: int, divisor: int) -> int | None:
    exact = -_EXACT < number < _EXACT and 0 < divisor < _EXACT
    return number // divisor if exact else None


# -- of what is traced -----------------------------------------------------------------------------


def kept(tx: Any) -> dict[Any, KeptNumber]:
    """The numbers that are kept of a graph's tensors, by node."""
    found: dict[Any, KeptNumber] = vars(tx.output).setdefault("_pjrt_bridge_numbers", {})
    return found


def keep(tx: Any, made: Any, number: KeptNumber) -> Any:
    """Keep the number of a tensor that was made; gives what was made."""
    if isinstance(made, TensorVariable):
        kept(tx)[made.as_proxy().node] = number
    return made


def forget(tx: Any, used: Sequence[Any]) -> None:
    """Keep no numbers any more of tensors that may be written over."""
    for item in used if kept(tx) else ():
        if isinstance(item, (ListVariable, TupleVariable)):
            forget(tx, item.items)
        elif is_kept(tx, item):
            kept(tx).pop(item.realize().as_proxy().node, None)


def is_kept(tx: Any, item: Any) -> bool:
    """Whether the number of a tensor is kept, or it is a buffer whose number can be known."""
    item = item.realize()
    if not isinstance(item, TensorVariable):
        return False
    return item.as_proxy().node in kept(tx) or NumberOfBuffer.of(item) is not None


def is_whole(item: Any) -> bool:
    """Whether something is a whole number."""
    if isinstance(item, SymNodeVariable):
        return item.python_type() is int
    return item.is_python_constant() and type(item.as_python_constant()) is int


def number_of(tx: Any, item: Any) -> KeptNumber | None:
    """A number, or that of a tensor."""
    item = item.realize()
    if not isinstance(item, TensorVariable):
        return KeptNumber(lambda _: item) if is_whole(item) else None
    found = kept(tx).get(item.as_proxy().node)
    if found is None:
        buffer = NumberOfBuffer.of(item)
        found = None if buffer is None else KeptNumber(buffer.guarded)
    return found


def value_of(tx: Any, item: Any) -> Any:
    """The whole number of a tensor, as Dynamo has it; None where it is not known."""
    found = number_of(tx, item)
    return found.make(tx) if found is not None and found.is_whole else None


def with_numbers(tx: Any, item: VariableTracker) -> Any:
    """An argument with numbers in the place of the tensors that hold them."""
    item = item.realize()
    if isinstance(item, (ListVariable, TupleVariable)) and any(
        is_kept(tx, one) for one in item.items
    ):
        return TupleVariable([with_numbers(tx, one) for one in item.items])
    found = value_of(tx, item) if is_kept(tx, item) else None
    return item if found is None else found
