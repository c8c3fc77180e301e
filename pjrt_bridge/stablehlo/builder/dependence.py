"""What a value is computed of."""

from __future__ import annotations

from typing import Any

from pjrt_bridge.stablehlo.builder.orders import operation_of
from pjrt_bridge.stablehlo.builder.values import Value
from pjrt_bridge.wrong_arguments import checked

_MAX_VISITED = 256
"""Operations that are visited; a value of more may be computed of anything."""

_RELABELS = ("stablehlo.reshape", "stablehlo.transpose")
_STORED = ("func.call", "stablehlo.custom_call", "stablehlo.convolution", "stablehlo.dot_general")
"""Operations whose results compilers write to memory, so that no loop computes them anew."""


@checked
def is_argument(value: Value) -> bool:
    """Whether a value is an argument, of a program or of a region."""
    return operation_of(value._handle) is None


@checked
def may_be_computed_with(value: Value, other: Value) -> bool:
    """Whether one loop may compute a value of the elements of another one, in any shape of it.

    Args:
        value: what is computed.
        other: what may be read; what it is a reshape or a transposition of counts as well.
    """
    source = _relabeled(other._handle)
    left: list[Any] = [value._handle]
    seen: set[Any] = set()
    while left:
        handle = _relabeled(left.pop())
        if handle == source:
            return True
        operation = operation_of(handle)
        if operation is None or operation.name in _STORED or operation in seen:
            continue
        if len(seen) == _MAX_VISITED:
            return True
        seen.add(operation)
        left += operation.operands
    return False


def _relabeled(handle: Any) -> Any:
    """The value whose elements another one has, in another shape."""
    while (operation := operation_of(handle)) is not None and operation.name in _RELABELS:
        (handle,) = operation.operands
    return handle
