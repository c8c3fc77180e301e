"""Mathematical functions of one or two numbers, element by element, and their forms in place."""

from __future__ import annotations

import torch

from tests.differential.draft import INTEGERS, Draft, is_float, is_real
from tests.differential.grammar.registry import Made, production

_OF_ANY = (
    "acosh({0}.abs() + 1)", "asinh({0})", "atanh({0} / 20)", "acos({0} / 20)", "asin({0} / 20)",
    "cosh({0} / 4)", "sinh({0} / 4)", "tan({0} / 8)", "erfc({0})", "erfinv({0} / 20)", "exp2({0})",
    "digamma({0}.abs() + 1)", "lgamma({0}.abs() + 1)", "frac({0})", "deg2rad({0})",
    "rad2deg({0})", "log10({0}.abs() + 1)", "log2({0}.abs() + 1)", "logit({0}.sigmoid())",
    "sinc({0})",
    "sgn({0})", "i0({0})", "mvlgamma({0}.abs() + 3, 2)", "polygamma(1, {0}.abs() + 1)",
    "nan_to_num({0}, nan=1.5)", "float_power({0}.abs() + 1, 1.5)", "special.entr({0}.abs())",
    "special.i0e({0})", "special.i1({0})", "special.i1e({0})", "special.log_ndtr({0})",
    "special.ndtr({0})", "special.ndtri({0}.sigmoid())", "special.erfcx({0})",
    "special.bessel_j0({0})", "special.bessel_y1({0}.abs() + 1)", "special.psi({0}.abs() + 1)",
    "special.xlog1py({0}, 2.0)", "special.multigammaln({0}.abs() + 3, 2)",
    "special.modified_bessel_k0({0}.abs() + 1)", "special.spherical_bessel_j0({0})",
    "special.bessel_j1({0})", "special.bessel_y0({0}.abs() + 1)", "special.airy_ai({0} / 4)",
    "special.modified_bessel_i0({0} / 2)", "special.modified_bessel_i1({0} / 2)",
    "special.scaled_modified_bessel_k1({0}.abs() + 1)", "clamp_max({0}, 0.5)",
    "special.chebyshev_polynomial_t({0} / 16, 3)", "special.laguerre_polynomial_l({0} / 16, 2)",
    "special.legendre_polynomial_p({0} / 16, 3)", "special.hermite_polynomial_h({0} / 4, 3)",
)  # fmt: skip


@production("functions", "of_one", 4)
def _of_one(draft: Draft) -> Made:
    x = draft.tensor(is_real)
    return Made(f"torch.{draft.rng.choice(_OF_ANY)}", (x,), rough=True)


_EXACT = (
    "isnan({0})", "isinf({0})", "isfinite({0})", "isposinf({0})", "isneginf({0})", "isreal({0})",
    "signbit({0})", "frexp({0})[0]", "frexp({0})[1]",
)  # fmt: skip


@production("functions", "of_kind", 1.5)
def _of_kind(draft: Draft) -> Made:
    x = draft.exact(is_real)
    return Made(f"torch.{draft.rng.choice(_EXACT)}", (x,))


_OF_TWO = (
    "atan2({0}, {1})", "hypot({0}, {1})", "logaddexp({0}, {1})", "logaddexp2({0}, {1})",
    "xlogy({0}, {1}.abs() + 1)", "copysign({0}, {1})", "heaviside({0}, {1})",
    "special.zeta({0}.abs() + 2, {1}.abs() + 1)", "igamma({0}.abs() + 1, {1}.abs())",
    "igammac({0}.abs() + 1, {1}.abs())", "float_power({0}.abs() + 0.5, {1} / 4)",
    "pow({0}.abs() + 0.5, {1} / 4)", "addcdiv({0}, {1}, {1}.abs() + 1, value=0.5)",
    "rsub({0}, {1}, alpha=3)", "true_divide({0}, {1}.abs() + 1)", "dist({0}, {1}, 2)",
    "lerp({0}, {1}, {0})", "nextafter({0}, {1})", "ldexp({0}, {1}.clamp(-3, 3).int())",
    "polar({0}.abs(), {1})", "complex({0}, {1})",
)  # fmt: skip


@production("functions", "of_two", 3)
def _of_two(draft: Draft) -> Made:
    x = draft.tensor(is_real)
    dtype = draft.value(x.name).dtype
    how = draft.rng.choice(_OF_TWO)
    y = draft.beside(x, lambda value: is_real(value) and value.dtype is dtype)
    return Made(f"torch.{how}", (x, y), rough=True)


_OF_COMPLEX = (
    "{0}.real", "{0}.imag", "{0}.angle()", "{0}.abs()", "{0}.conj()", "{0}.conj_physical()",
    "torch.view_as_real({0}.resolve_conj())", "{0}.sgn()", "({0} / 8).exp()", "({0} / 8).tanh()",
    "({0} / 8).sin()", "({0} / 8).cosh()", "({0} + 20).log()", "({0} + 20).sqrt()",
    "{0} * {0}.conj()",
    "{0}.square()", "{0}.reciprocal()", "{0} ** 2", "{0}.mH", "{0}.cumsum(0)", "{0}.prod()",
    "{0}.isfinite()", "torch.linalg.vector_norm({0})", "{0}.imag.abs() + {0}.real",
    "{0} == {0}.conj()",
    "torch.where({0}.real > 0, {0}, {0}.conj())", "{0}.mean()", "{0}.to(torch.complex128).var()",
)  # fmt: skip


@production("functions", "of_complex", 2)
def _of_complex(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dtype.is_complex)
    return Made(draft.rng.choice(_OF_COMPLEX), (x,), rough=True)


_OF_INTEGERS = (
    "bitwise_and({0}, {1})", "bitwise_or({0}, {1})", "bitwise_xor({0}, {1})", "bitwise_not({0})",
    "bitwise_left_shift({0}, {1}.abs() % 5)", "bitwise_right_shift({0}, {1}.abs() % 5)",
    "gcd({0}, {1})", "lcm({0} % 50, {1} % 50)", "logical_and({0}, {1})", "logical_or({0}, {1})",
    "logical_xor({0}, {1})", "remainder({0}, {1}.abs() + 1)",
)  # fmt: skip


@production("functions", "of_integers", 1.5)
def _of_integers(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dtype in INTEGERS)
    y = draft.beside(x, lambda value: value.dtype in INTEGERS)
    return Made(f"torch.{draft.rng.choice(_OF_INTEGERS)}", (x, y))


_COMPARING = (
    "{0}.eq({1})", "{0}.ge({1})", "{0}.less({1})", "{0}.not_equal({1})", "torch.isclose({0}, {1})",
    "torch.isin({0}, {1})", "{0}.equal({1})", "torch.allclose({0}, {0})",
)  # fmt: skip


@production("functions", "comparing", 1.5)
def _comparing(draft: Draft) -> Made:
    x = draft.exact(is_real)
    dtype = draft.value(x.name).dtype
    y = draft.like(x, lambda value: value.dtype is dtype)
    if draft.is_rough(y.name):
        y = x
    return Made(draft.rng.choice(_COMPARING), (x, y))


_IN_PLACE = (
    "absolute_()", "neg_()", "sinh_()", "atan_()", "floor_()", "frac_()", "sigmoid_()", "tanh_()",
    "clip_(-1, 1)", "clamp_min_(0.5)", "erf_()", "square_()", "sgn_()", "rad2deg_()", "trunc_()",
    "log1p_()", "exp2_()", "nan_to_num_()", "logical_not_()", "eq_(1)", "gt_(0)", "le_(0.5)",
    "remainder_(3)", "fmod_(2)", "pow_(2)", "lerp_({1}, 0.25)", "addcmul_({1}, {1}, value=0.5)",
    "atan2_({1})", "copysign_({1})", "xlogy_(2.0)", "true_divide_(4)", "multiply_({1})",
    "hypot_({1})", "subtract_({1}, alpha=2)", "fill_diagonal_(1.5)", "tril_()", "triu_(1)",
    "cumsum_(0)", "cumprod_(0)", "renorm_(2, 0, 1.0)", "t_()", "swapaxes_(0, 1)", "squeeze_()",
    "unsqueeze_(0)", "addcdiv_({1}, {1}.abs() + 1)", "heaviside_({1})", "floor_divide_(2)",
    "masked_scatter_({1} > 0, {1})", "put_(torch.tensor([0]), {1}.reshape(-1)[:1])",
)  # fmt: skip


@production("functions", "in_place", 3)
def _in_place(draft: Draft) -> Made:
    x = draft.target(is_float)
    dtype = draft.value(x.name).dtype
    how = draft.rng.choice(_IN_PLACE)
    y = draft.like(x, lambda value: value.dtype is dtype) if "{1}" in how else x
    made = draft.rng.choice(["", "v"])
    return Made(f"{{0}}.{how}", (x, y), makes=made, rough=True)


_WITH_OUT = (
    "torch.exp2({0}, out={1})", "torch.atan({0}, out={1})", "torch.hypot({0}, {0}, out={1})",
    "torch.cumsum({0}, 0, out={1})", "torch.clamp({0}, -1, 1, out={1})",
    "torch.where({0} > 0, {0}, {0} * 2, out={1})", "torch.logaddexp({0}, {0}, out={1})",
    "torch.sigmoid({0}, out={1})", "torch.pow({0}, 2, out={1})", "torch.tril({0}, out={1})",
    "torch.sort({0}, stable=True, out=({1}, torch.empty(0, dtype=torch.int64)))[0]",
)  # fmt: skip


@production("functions", "with_out")
def _with_out(draft: Draft) -> Made:
    x = draft.tensor(lambda value: value.dtype is torch.float32 and not value.requires_grad)
    y = draft.like(x, lambda value: value.dtype is torch.float32 and not value.requires_grad)
    return Made(draft.rng.choice(_WITH_OUT), (x, y), rough=True)
