"""Operators that work element by element."""

from __future__ import annotations

import torch

from tests.differential.draft import (
    COMPLEX,
    FLOATS,
    HALF,
    INTEGERS,
    Draft,
    Unfit,
    is_float,
    is_number,
    is_real,
)
from tests.differential.grammar.registry import Made, production
from tests.differential.ir import Name, Operand


def halved(draft: Draft, *given: Operand) -> bool:
    """Whether one of the tensors has a half precision type: sums of these are rounded."""
    return any(
        isinstance(item, Name)
        and isinstance(draft.value(item.name), torch.Tensor)
        and draft.value(item.name).dtype in HALF
        for item in given
    )


_WIDE = (torch.float32, torch.float64)

_THIRDS = "({0} / 3)"
"""Numbers that half precision rounds: most values are multiples of 1/4, which it holds exactly."""


@production("elementwise", "add", 4)
def _add(draft: Draft) -> Made:
    x = draft.tensor(is_number)
    y: Operand = draft.number(draft.value(x.name).dtype)
    if draft.chance(0.6):
        y = draft.beside(x, is_number)
    ways = ["{0} + {1}", "{0} - {1}", "{1} - {0}", "torch.add({0}, {1}, alpha=2)"]
    # Of a float that changes Dynamo makes a tensor, and forgets what it is multiplied with.
    how = draft.rng.choice(ways if isinstance(y, Name) else ways[:3])
    return Made(how, (x, y), rough=halved(draft, x, y))


@production("elementwise", "mul", 3)
def _mul(draft: Draft) -> Made:
    x = draft.tensor()
    y: Operand = draft.number(draft.value(x.name).dtype)
    if draft.chance(0.6):
        y = draft.beside(x)
    return Made("{0} * {1}", (x, y), rough=halved(draft, x, y))


@production("elementwise", "copy", 1.5)
def _copy(draft: Draft) -> Made:
    x = draft.tensor()
    ways = [
        "{0}.clone()",
        "torch.empty_like({0}).copy_({0})",
        "{0}.to({0}.dtype, copy=True)",
        "torch.stack([{0}])[0]",
        "{0}.conj_physical()",
    ]
    return Made(draft.rng.choice(ways), (x,))


@production("elementwise", "divide")
def _divide(draft: Draft) -> Made:
    x = draft.tensor(is_number)
    y = draft.rng.choice([2, 4.0, 3, -0.5])
    if draft.chance(0.3):
        return Made("{0} / ({1}.abs() + 1)", (x, draft.beside(x, is_real)), rough=True)
    return Made("{0} / {1}", (x, y), rough=True)


@production("elementwise", "floor_divide", 2)
def _floor_divide(draft: Draft) -> Made:
    x = draft.exact(lambda value: is_real(value) and value.dtype not in HALF)
    how = draft.rng.choice(
        ["{0} // {1}", "{0} % {1}", 'torch.div({0}, {1}, rounding_mode="trunc")',
         'torch.div({0}, {1}, rounding_mode="floor")', "torch.fmod({0}, {1})"]
    )  # fmt: skip
    return Made(how, (x, draft.rng.choice([2, 3, -2])))


@production("elementwise", "divide_integers", 0.6)
def _divide_integers(draft: Draft) -> Made:
    """By data that has zeros, half of the time; never by -1, of which eager's kernels die."""
    x = draft.exact(lambda value: value.dtype in INTEGERS)
    y = draft.beside(x, lambda value: value.dtype in INTEGERS)
    if draft.is_rough(y.name) or draft.is_drawn(y.name):
        raise Unfit
    by = draft.rng.choice(["{1}.abs()", "({1}.abs() % 7 + 1)"])
    how = draft.rng.choice(
        [f"{{0}} // {by}", f"{{0}} % {by}", f"torch.fmod({{0}}, {by})", f"7 % {by}",
         f'torch.div({{0}}, {by}, rounding_mode="trunc")']
    )  # fmt: skip
    return Made(how, (x, y))


@production("elementwise", "large_steps", 0.6)
def _large_steps(draft: Draft) -> Made:
    """Steps that overflow or vanish, which the whole would not."""
    x = draft.tensor(lambda value: value.dtype is torch.float32)
    ways = [
        "{0} * 3e38 * 3e38", "{0} * 1e-30 * 1e-30", "{0} * 7e37 / 7e37", "{0} / 1e-30 / 1e-30",
        "{0} + 3e38 - 3e38", "3e38 / ({0}.abs() + 1) * 3e38",
        "torch.log(torch.exp({0}.abs() * 40))", "({0} * 1e25).square().sqrt()",
        "({0} * 1e25).pow(2).pow(0.5)", "torch.exp({0}.abs() * 40) / torch.exp({0}.abs() * 40)",
        "{0} * 1e25 / 1e20 / ({0}.abs() * 1e25 + 1)",
    ]  # fmt: skip
    return Made(draft.rng.choice(ways), (x,), rough=True)


@production("elementwise", "whole_quotient", 0.5)
def _whole_quotient(draft: Draft) -> Made:
    """A quotient that has to be rounded once."""
    x = draft.exact(lambda value: value.dtype in (torch.float32, torch.float64))
    number = draft.rng.choice([41, 83, 49, 3])
    return Made("({0} * {1} / {1}).floor()", (x, number))


@production("elementwise", "unary", 3)
def _unary(draft: Draft) -> Made:
    x = draft.tensor(is_number)
    how = draft.rng.choice(["-{0}", "{0}.abs()", "{0}.square()", "{0}.positive()"])
    return Made(how, (x,), rough=halved(draft, x) or draft.value(x.name).dtype.is_complex)


@production("elementwise", "rough_unary", 2)
def _rough_unary(draft: Draft) -> Made:
    x = draft.tensor(is_real)
    name = draft.rng.choice(
        ["exp", "sin", "cos", "tanh", "sigmoid", "relu", "sqrt", "rsqrt", "log1p", "erf",
         "reciprocal", "atan", "expm1", "log", "softplus", "gelu", "silu"]
    )  # fmt: skip
    if name in ("exp", "expm1"):
        return Made(f"torch.{name}({{0}}.clamp(-4, 4))", (x,), rough=True)
    if name in ("softplus", "gelu", "silu"):
        x = draft.tensor(is_float)
        return Made(f"torch.nn.functional.{name}({{0}})", (x,), rough=True)
    if name in ("sqrt", "rsqrt", "log1p", "log", "reciprocal") and draft.chance(0.9):
        return Made(f"torch.{name}({{0}}.abs() + 1)", (x,), rough=True)
    return Made(f"torch.{name}({{0}})", (x,), rough=name != "relu")


@production("elementwise", "steps")
def _steps(draft: Draft) -> Made:
    x = draft.exact(is_real)
    how = draft.rng.choice(
        ["{0}.floor()", "{0}.ceil()", "{0}.round()", "{0}.trunc()", "{0}.sign()"]
    )
    return Made(how, (x,))


@production("elementwise", "compare", 2)
def _compare(draft: Draft) -> Made:
    x = draft.exact(lambda value: not value.dtype.is_complex)
    y: Operand = draft.rng.choice([0, 1, 0.5, -1])
    if draft.chance(0.5):
        y = draft.beside(x, lambda value: not value.dtype.is_complex)
        if draft.is_rough(y.name) or draft.is_drawn(y.name):
            raise Unfit
    sign = draft.rng.choice([">", "<", ">=", "<=", "==", "!="])
    return Made(f"{{0}} {sign} {{1}}", (x, y))


@production("elementwise", "logical")
def _logical(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dtype is torch.bool or value.dtype in INTEGERS)
    if draft.chance(0.3):
        return Made("~{0}", (x,))
    y = draft.beside(x, lambda value: value.dtype is torch.bool or value.dtype in INTEGERS)
    return Made(draft.rng.choice(["{0} & {1}", "{0} | {1}", "{0} ^ {1}"]), (x, y))


@production("elementwise", "logical_not", 0.4)
def _logical_not(draft: Draft) -> Made:
    return Made("{0}.logical_not()", (draft.exact(),))


@production("elementwise", "extremes")
def _extremes(draft: Draft) -> Made:
    x = draft.tensor(is_real)
    y = draft.beside(x, is_real)
    name = draft.rng.choice(["maximum", "minimum", "fmax", "fmin"])
    return Made(f"torch.{name}({{0}}, {{1}})", (x, y))


@production("elementwise", "clamp")
def _clamp(draft: Draft) -> Made:
    x = draft.tensor(is_real)
    if draft.value(x.name).dtype is torch.uint8:
        raise Unfit
    how = draft.rng.choice(["{0}.clamp(-1, 2)", "{0}.clamp(min=0)", "{0}.clamp(max={1})"])
    return Made(how, (x, draft.integer(0, 3)))


@production("elementwise", "to", 3)
def _to(draft: Draft) -> Made:
    dtype = draft.rng.choice([*FLOATS, *INTEGERS, *COMPLEX, torch.bool])
    if dtype in (*FLOATS, *COMPLEX):
        x = draft.tensor(lambda value: not value.dtype.is_complex or dtype in COMPLEX)
        text = "{0}"
        if dtype in HALF and draft.value(x.name).dtype in _WIDE and draft.chance(0.5):
            text = _THIRDS
        return Made(f"{text}.to({{1}})", (x, dtype), rough=dtype in HALF)

    def in_range(value: torch.Tensor) -> bool:
        if value.dtype.is_complex:
            return False
        if not value.dtype.is_floating_point or dtype is torch.bool:
            return True
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        finite = bool(value.isfinite().all())
        return finite and bool(((value > low - 0.5) & (value < high)).all())

    return Made("{0}.to({1})", (draft.exact(in_range), dtype))


@production("elementwise", "round_trip", 2)
def _round_trip(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dtype in _WIDE)
    dtype = draft.value(x.name).dtype
    text = draft.rng.choice([_THIRDS, _THIRDS, "{0}"])
    return Made(f"{text}.to({{1}}).to({{2}})", (x, draft.rng.choice(HALF), dtype), rough=True)


@production("elementwise", "where", 2)
def _where(draft: Draft) -> Made:
    x = draft.tensor()
    condition = draft.beside(x, lambda value: value.dtype is torch.bool)
    y: Operand = draft.number(draft.value(x.name).dtype)
    if draft.chance(0.6):
        y = draft.beside(x)
    return Made("torch.where({0}, {1}, {2})", (condition, x, y))


@production("elementwise", "masked_fill")
def _masked_fill(draft: Draft) -> Made:
    x = draft.tensor()
    condition = draft.beside(x, lambda value: value.dtype is torch.bool)
    return Made(
        "{0}.masked_fill({1}, {2})", (x, condition, draft.number(draft.value(x.name).dtype))
    )


@production("elementwise", "lerp", 0.5)
def _lerp(draft: Draft) -> Made:
    x = draft.tensor(is_float)
    dtype = draft.value(x.name).dtype
    y = draft.like(x, lambda value: value.dtype == dtype)
    how = draft.rng.choice(["{0}.lerp({1}, 0.5)", "torch.addcmul({0}, {1}, {1}, value=2)"])
    return Made(how, (x, y), rough=True)


@production("elementwise", "pow", 0.7)
def _pow(draft: Draft) -> Made:
    x = draft.tensor(is_real)
    return Made("{0} ** {1}", (x, draft.rng.choice([2, 3, 0, 1])), rough=True)
