"""What Python computes with whole numbers only, on sizes: common divisors, lengths in bits, ranges.

Dynamo takes the values of the sizes for them, or ends the graph. While it traces for this backend,
they are arithmetic on symbols.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.tensor import SymNodeVariable

from pjrt_bridge.torch_interop.compat.capture.size_arithmetic import (
    bit_length,
    counted,
    greatest_common_divisor,
    least_common_multiple,
    shares_of_divisors,
)
from pjrt_bridge.torch_interop.compat.capture.sized_calls import inlined, trace_calls

_MOST = 4096
"""Of whole numbers whose divisors are looked for."""


def trace_whole_numbers(is_for_us: Callable[[Any], bool]) -> None:
    """Have Dynamo trace arithmetic instead of these functions and methods.

    Args:
        is_for_us: says of Dynamo's translator whether it traces for this backend.
    """
    trace_calls(math.gcd, _by_divisors(greatest_common_divisor), is_for_us)
    trace_calls(math.lcm, _by_divisors(least_common_multiple), is_for_us)
    before = SymNodeVariable.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "bit_length" and not args and not kwargs and is_for_us(tx) and _is_whole(self):
            return inlined(tx, bit_length, (self,), {})
        return before(self, tx, name, args, kwargs)

    SymNodeVariable.call_method = call_method  # type: ignore[method-assign]
    _trace_ranges(is_for_us)


def _trace_ranges(is_for_us: Callable[[Any], bool]) -> None:
    """Have a range be known by how many numbers it has: a graph for each count, not each size."""
    before = BuiltinVariable.call_range

    def call_range(self: Any, tx: Any, *args: Any) -> Any:
        given = [item.realize() for item in args]
        # Of one number the count is the size.
        if len(given) > 1 and is_for_us(tx) and _counts_symbols(given):
            return inlined(tx, counted, given, {})
        return before(self, tx, *args)

    BuiltinVariable.call_range = call_range  # type: ignore[method-assign]


def _counts_symbols(given: Sequence[Any]) -> bool:
    """Whether a range is from symbols, to them, or in steps of them."""
    *ends, step = given if len(given) == 3 else [*given, None]
    return (
        any(map(_is_whole, given))
        and all(item.is_python_constant() or _is_whole(item) for item in ends)
        and (step is None or _is_whole(step) or _is_step(step))
    )


def _is_step(item: VariableTracker) -> bool:
    return item.is_python_constant() and item.as_python_constant() != 0


def _by_divisors(function: Callable[..., int]) -> Callable[[Any, Any, Any], Any]:
    """Traces a function of a symbol, a number that is known and what its divisors say."""

    def traced(tx: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        given = [item.realize() for item in args]
        symbols = [item for item in given if isinstance(item, SymNodeVariable)]
        others = [item for item in given if item.is_python_constant()]
        if kwargs or len(symbols) != 1 or len(others) != 1 or not _is_whole(symbols[0]):
            return None
        known = others[0].as_python_constant()
        if type(known) is not int or not 0 < known <= _MOST:
            return None
        told = [VariableTracker.build(tx, item) for item in (known, shares_of_divisors(known))]
        return inlined(tx, function, (symbols[0], *told), {})

    return traced


def _is_whole(item: VariableTracker) -> bool:
    """Whether something is a symbol of a whole number."""
    return isinstance(item, SymNodeVariable) and item.python_type() is int
