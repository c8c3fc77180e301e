"""JAX's texts for symbolic sizes: `b`, `2*b`, `floordiv(b, 4) + 1`.

Source: JAX's page "Shape polymorphism", on the syntax of symbolic dimensions; `^` is a power.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pjrt_bridge.errors import OptionError, ProgramError

_OPERATIONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}
_LARGEST = 1 << 40


def names(sizes: Sequence[str]) -> set[str]:
    """The symbols in a shape.

    Raises:
        ProgramError: a text that is no size.
    """
    return {
        node.id
        for size in sizes
        for node in ast.walk(_parse(size))
        if isinstance(node, ast.Name) and node.id not in _FUNCTIONS
    }


def dimensions(sizes: Sequence[str]) -> tuple[int | str, ...]:
    """A shape with numbers where there are no symbols."""
    return tuple(int(size) if size.isdecimal() else size for size in sizes)


def shape(sizes: Sequence[str], values: Mapping[str, int]) -> tuple[int, ...]:
    """A shape for numbers in place of the symbols.

    Raises:
        OptionError: a symbol has no number, or one that gives no size.
        ProgramError: a text that is no size.
    """
    found = []
    for name, value in values.items():
        if type(value) is not int:
            raise OptionError(f"sizes: {name}: found {value!r}, expected an int")
    for text in sizes:
        try:
            size = _value(_parse(text), values, text)
        except ArithmeticError as error:
            raise OptionError(f"size {text!r}: {dict(values)}: {error}") from error
        if not 0 <= size < _LARGEST:
            raise OptionError(f"size {text!r}: found {size} for {dict(values)}, expected a size")
        found.append(size)
    return tuple(found)


def evaluate(size: str, values: Mapping[str, Any]) -> Any:
    """A size for anything that is added, multiplied and divided as integers are.

    Raises:
        OptionError: a symbol has no value.
        ProgramError: a text that is no size.
    """
    return _value(_parse(size), values, size)


def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text.replace("^", "**"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ProgramError(f"size {text!r} is no expression of sizes") from None


def _value(node: ast.expr, values: Mapping[str, Any], text: str) -> Any:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            if name not in values:
                raise OptionError(f"size {text!r}: {name}: found None, expected an int")
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            a, b = _value(left, values, text), _value(right, values, text)
            too_large = isinstance(a, int) and abs(a) > _LARGEST
            if isinstance(op, ast.Pow) and (too_large or not 0 <= b <= 64):
                raise ProgramError(f"size {text!r}: found a power that is no size")
            return _OPERATIONS[type(op)](a, b)
        case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if (
            name in _FUNCTIONS
        ):
            return _FUNCTIONS[name](_value(left, values, text), _value(right, values, text))
    raise ProgramError(f"size {text!r} is no expression of sizes")
