"""Sizes as expressions of symbols: what is known of their values, and functions that give them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sympy
from torch.utils._sympy.functions import (
    CeilToInt,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    PythonMod,
    RoundToInt,
    ToFloat,
    TruncToInt,
)
from torch.utils._sympy.symbol import SymT, symbol_is_type


def is_number(size: Any) -> bool:
    """Whether a size depends on no symbol."""
    return not getattr(size, "free_symbols", ())


def depends_on_data(size: Any) -> bool:
    """Whether a size is calculated from one that torch did not know before the data."""
    kinds = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)
    return any(symbol_is_type(item, kinds) for item in getattr(size, "free_symbols", ()))


@lru_cache(4096)
def divided(number: Any) -> Any:
    """An expression with quotients for divisions without a rest."""

    def divide(dividend: Any, divisor: Any) -> Any:
        whole = quotient(dividend, divisor)
        if whole is None and isinstance(divisor, FloorDiv) and divisor.args[0] == dividend:
            # So torch writes the other factor of a size that a view divides.
            whole = divisor.args[1] if is_number(divisor.args[1]) else None
        return FloorDiv(dividend, divisor) if whole is None else whole

    return number.replace(FloorDiv, divide)


def quotient(number: Any, divisor: Any) -> Any:
    """The quotient of sizes, numbers or expressions, if it is whole in all calls; or None."""
    if isinstance(number, int) and isinstance(divisor, int):
        return number // divisor if divisor and number % divisor == 0 else None
    found = None if divisor == 0 else number / divisor
    if not getattr(found, "is_integer", False) and not is_number(found):
        # A product of a sum, such as 4 * s0 + 4, is divided as a polynomial.
        found = sympy.cancel(found)
    return found if getattr(found, "is_integer", False) else None


def floor_quotient(number: Any, divisor: Any) -> Any:
    """The quotient of sizes, numbers or expressions, rounded down as torch writes it."""
    if isinstance(number, int) and isinstance(divisor, int):
        return number // divisor
    return divided(FloorDiv(sympy.sympify(number), sympy.sympify(divisor)))


def diagonal_size(rows: Any, columns: Any, offset: Any) -> Any:
    """How many elements a diagonal of a matrix has; all are numbers or expressions."""
    upper, lower = Max(offset, 0), Min(offset, 0)  # type: ignore[no-untyped-call]
    return Max(0, Min(rows + lower, columns - upper))  # type: ignore[no-untyped-call]


def subtracted_symbols(size: Any) -> set[Any]:
    """The symbols that are subtracted in a sum: as one grows, the size may fall."""
    return {
        symbol
        for term in sympy.Add.make_args(sympy.sympify(size))
        if term.could_extract_minus_sign()
        for symbol in term.free_symbols
    }


def falling_symbols(size: Any) -> set[Any]:
    """The symbols as which a size falls, or may, apart from what is rounded down in it."""
    subtracted = subtracted_symbols(size)
    if not subtracted:
        return subtracted
    parts = _without_rounding(sympy.sympify(size))
    return {
        symbol
        for symbol in subtracted
        if not all(sympy.expand(sympy.diff(part, symbol)).is_nonnegative for part in parts)
    }


_MOST_PARTS = 16
"""Expressions without `Max` and `Min` that one of them is taken apart into, at most."""


def _without_rounding(size: Any) -> list[Any]:
    """An expression without what rounds; for each operand of a `Max` or `Min` one of its own.

    A remainder is what rounding leaves over.
    """
    for remainder in (Mod, PythonMod, sympy.Mod):
        size = size.replace(remainder, lambda number, divisor: sympy.Integer(0))
    for rounding in (FloorToInt, CeilToInt, TruncToInt, RoundToInt, ToFloat):
        size = size.replace(rounding, lambda number: number)
    for division in (FloorDiv, IntTrueDiv, FloatTrueDiv):
        size = size.replace(division, lambda number, divisor: number / divisor)
    parts = [size]
    while len(parts) <= _MOST_PARTS:
        at, several = next(
            ((at, found) for at, part in enumerate(parts) if (found := part.atoms(Max, Min))),
            (0, set()),
        )
        if not several:
            break
        # The innermost has none in its operands.
        inner = min(several, key=lambda one: one.count_ops())
        parts[at : at + 1] = [parts[at].xreplace({inner: one}) for one in inner.args]
    return parts


def is_same_size(one: Any, other: Any) -> bool:
    """Whether two sizes, numbers or expressions, are equal in all calls."""
    return bool(one == other) or bool(sympy.expand(one - other) == 0)


def is_never_negative(size: Any) -> bool:
    """Whether a size, number or expression, can be seen not to be negative in any call.

    No operand of a minimum is smaller than it, and none of a maximum is larger.
    """
    size = sympy.sympify(size)
    if isinstance(size, FloorDiv):
        whole, divisor = size.args
        return bool(divisor.is_positive) and is_never_negative(whole)
    size = sympy.expand(size)
    if size.is_nonnegative:
        return True
    for term in sympy.Add.make_args(size):
        factor, rest = term.as_coeff_Mul()
        if (isinstance(rest, Min) and factor < 0) or (isinstance(rest, Max) and factor > 0):
            return any(is_never_negative(size - term + factor * item) for item in rest.args)
    return False


def renamed(size: Any, names: Mapping[Any, Any]) -> Any:
    """A size, number or expression, with other symbols for some of its own."""
    return size if is_number(size) else size.xreplace(names)


def solved(
    equal: Iterable[tuple[Any, Any]], symbols: Container[Any], known: Mapping[Any, Any]
) -> dict[Any, Any]:
    """Symbols that follow from others in all calls in which sizes are equal.

    Args:
        equal: pairs of sizes, numbers or expressions.
        symbols: which may be solved for; a symbol follows from others where it grows with them.
        known: symbols that follow from others.
    """
    found: dict[Any, Any] = dict(known)
    for one, other in equal:
        left = sympy.expand(sympy.sympify(one - other).xreplace(found))
        for symbol in sorted(left.free_symbols, key=str):
            factor = left.coeff(symbol)
            value = sympy.expand(symbol - left / factor) if factor in (1, -1) else symbol
            if (
                symbol in symbols
                and symbol not in value.free_symbols
                and not is_number(value)
                and not falling_symbols(value)
            ):
                new = {symbol: value}
                found = {key: item.xreplace(new) for key, item in found.items()} | new
                break
    return found


def compiled_numbers(
    numbers: Sequence[Any], symbols: Sequence[Any]
) -> Callable[[Sequence[int]], list[Any]]:
    """A function from values of symbols to those of numbers and expressions of them."""
    names = {symbol: f"s[{at}]" for at, symbol in enumerate(symbols)}
    rest: dict[str, Any] = {}

    def other(number: Any) -> Callable[[Sequence[int]], Any]:
        kind = _kind(number)

        def value(values: Sequence[int]) -> Any:
            return kind(number.subs(dict(zip(symbols, values, strict=True))))

        return value

    def source(number: Any) -> str:
        written = _source(number, names)
        if written is None:
            rest[f"f{len(rest)}"] = other(number)
            written = f"f{len(rest) - 1}(s)"
        return written

    code = f"lambda s: [{', '.join(map(source, numbers))}]"
    made: Callable[[Sequence[int]], list[Any]] = eval(code, rest)
    return made


def _kind(number: Any) -> type[bool | int | float]:
    """The type of an expression's values in Python."""
    if isinstance(number, (sympy.Rel, sympy.logic.boolalg.BooleanFunction)):
        return bool
    # Of torch's (2.13) functions of integers, those of bits do not say that they give integers.
    whole = number.replace(
        lambda part: type(part).__name__.startswith("BitwiseFn"),
        lambda _: sympy.Dummy(integer=True),
    )
    return int if whole.is_integer else float


def _source(number: Any, names: Mapping[Any, str]) -> str | None:
    """An expression of integers in Python; None where it is made of something else."""
    if isinstance(number, int) or getattr(number, "is_Integer", False):
        return str(int(number))
    if number in names:
        return names[number]
    kind = type(number).__name__
    parts = [_source(item, names) for item in getattr(number, "args", ())]
    if None in parts or not parts:
        return None
    if kind in ("Add", "Mul"):
        return "(" + {"Add": " + ", "Mul": " * "}[kind].join(map(str, parts)) + ")"
    if kind in ("FloorDiv", "Mod", "PythonMod"):
        return f"({parts[0]} {'//' if kind == 'FloorDiv' else '%'} {parts[1]})"
    if kind in ("Max", "Min"):
        return f"{kind.lower()}({', '.join(map(str, parts))})"
    if kind == "Pow" and str(parts[1]).isdigit():
        return f"({parts[0]} ** {parts[1]})"
    return None
