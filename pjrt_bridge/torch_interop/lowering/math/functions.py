"""Mathematical functions of one argument.

ATen semantics kept: integer and bool inputs are promoted to the output's float type; half precision
is computed in float32 and rounded once; on the branch cuts of complex functions the signs of zeros
count.
"""

from __future__ import annotations

import math

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.math import complex_functions
from pjrt_bridge.torch_interop.lowering.math.complex_functions import exp, log, scaled
from pjrt_bridge.torch_interop.lowering.math.complex_numbers import true_quotient
from pjrt_bridge.torch_interop.lowering.math.elementwise import Unary, copy_sign
from pjrt_bridge.torch_interop.lowering.registry import lowering


def _function(name: str, emit: Unary) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(c: Context, x: Value) -> Value:
        return c.result(emit(c.b, c.widen(x, c.output.dtype)))


def _log_of_base(base: int) -> Unary:
    return lambda b, x: scaled(b, log(b, x), 1 / math.log(base))


def _on_cut(emit: Unary, real: int, imag: int) -> Unary:
    """A function whose parts have the signs of those of its argument: 1; the opposite ones: -1.

    0: the part's sign is left alone. On a branch cut the sign of a zero tells from which side the
    function continues, as in C99 (annex G.6); XLA takes one side.
    """

    def signed(b: Builder, part: Value, of: Value, sign: int) -> Value:
        return copy_sign(b, part, b.negate(of) if sign < 0 else of) if sign else part

    def on_cut(b: Builder, x: Value) -> Value:
        made = emit(b, x)
        if not x.dtype.is_complex:
            return made
        return b.complex_(
            signed(b, b.real(made), b.real(x), real), signed(b, b.imag(made), b.imag(x), imag)
        )

    return on_cut


def reciprocal(b: Builder, x: Value) -> Value:
    """`1 / x`."""
    return true_quotient(b, b.full(x.shape, 1, x.dtype), x)


sqrt = _on_cut(complex_functions.sqrt, 0, 1)


def rsqrt(b: Builder, x: Value) -> Value:
    """`1 / sqrt(x)`."""
    return reciprocal(b, sqrt(b, x)) if x.dtype.is_complex else b.rsqrt(x)


def _digamma(b: Builder, x: Value) -> Value:
    pole = b.divide(b.full(x.shape, -1, x.dtype), x)
    return b.select(b.compare(x, b.full(x.shape, 0, x.dtype), "EQ"), pole, b.digamma(x))


def _exp2(b: Builder, x: Value) -> Value:
    if x.dtype.is_complex:
        return exp(b, scaled(b, x, math.log(2)))
    return b.power(b.full(x.shape, 2, x.dtype), x)


def _sigmoid(b: Builder, x: Value) -> Value:
    if not x.dtype.is_complex:
        return b.logistic(x)
    return reciprocal(b, b.add(b.full(x.shape, 1, x.dtype), exp(b, b.negate(x))))


_UNARY: dict[str, Unary] = {
    "acos": _on_cut(Builder.acos, 0, -1),
    "acosh": _on_cut(Builder.acosh, 0, 1),
    "asin": _on_cut(Builder.asin, 1, 1),
    "asinh": _on_cut(Builder.asinh, 1, 1),
    "atan": _on_cut(complex_functions.atan, 1, 1),
    "atanh": _on_cut(complex_functions.atanh, 1, 1),
    "cos": complex_functions.cos,
    "cosh": complex_functions.cosh,
    "digamma": _digamma,
    "erf": Builder.erf,
    "erfc": Builder.erfc,
    "erfinv": Builder.erf_inv,
    "exp": exp,
    "exp2": _exp2,
    "expm1": Builder.expm1,
    "log": log,
    "log10": _log_of_base(10),
    "log1p": Builder.log1p,
    "log2": _log_of_base(2),
    "reciprocal": reciprocal,
    "rsqrt": rsqrt,
    "sigmoid": _sigmoid,
    "sin": complex_functions.sin,
    "sinh": complex_functions.sinh,
    "sqrt": sqrt,
    "tan": complex_functions.tan,
    "tanh": complex_functions.tanh,
}
for _name, _emit in _UNARY.items():
    _function(_name, _emit)
