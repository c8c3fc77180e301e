import math

import ml_dtypes
import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.types import TensorType
from tests.stablehlo.helpers import program, run, tensor

SPREAD = np.array([-2.5, -0.5, -0.0, 0.0, 0.3, 0.5, 1.5, 2.5])
UNIT = np.array([-0.9, -0.4, -0.0, 0.1, 0.8])
POSITIVE = np.array([0.2, 0.5, 1.0, 2.5, 7.0])
SPECIAL = np.array([np.inf, -np.inf, np.nan, 1.0])


def vectorized(function):
    return lambda x: np.array([function(v) for v in x.tolist()])


UNARY = {
    "abs": (np.abs, SPREAD),
    "negate": (np.negative, SPREAD),
    "sign": (lambda x: np.copysign(np.sign(x), x), SPREAD),
    "exp": (np.exp, SPREAD),
    "expm1": (np.expm1, SPREAD),
    "log": (np.log, POSITIVE),
    "log1p": (np.log1p, POSITIVE),
    "sqrt": (np.sqrt, POSITIVE),
    "rsqrt": (lambda x: 1 / np.sqrt(x), POSITIVE),
    "cbrt": (np.cbrt, SPREAD),
    "sin": (np.sin, SPREAD),
    "cos": (np.cos, SPREAD),
    "tan": (np.tan, SPREAD),
    "tanh": (np.tanh, SPREAD),
    "logistic": (lambda x: 1 / (1 + np.exp(-x)), SPREAD),
    "floor": (np.floor, SPREAD),
    "ceil": (np.ceil, SPREAD),
    "round_even": (np.round, SPREAD),
    "round_away": (lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), SPREAD),
    "acos": (np.arccos, UNIT),
    "acosh": (np.arccosh, 1 + POSITIVE),
    "asin": (np.arcsin, UNIT),
    "asinh": (np.arcsinh, SPREAD),
    "atan": (np.arctan, SPREAD),
    "atanh": (np.arctanh, UNIT),
    "cosh": (np.cosh, SPREAD),
    "sinh": (np.sinh, SPREAD),
    "erf": (vectorized(math.erf), SPREAD),
    "erfc": (vectorized(math.erfc), SPREAD),
    "lgamma": (vectorized(math.lgamma), POSITIVE),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    reference, x = UNARY[name]
    x = x.astype(dtype)
    out = run(lambda b, v: getattr(b, name)(v), x)
    expected = reference(x.astype("float64")).astype(dtype)
    tolerance = 2e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)
    if name in ("negate", "sign", "floor", "ceil", "round_even", "round_away", "sin", "tanh"):
        np.testing.assert_array_equal(np.signbit(out), np.signbit(expected))


@pytest.mark.parametrize("name", ["exp", "floor", "negate", "tanh", "sqrt"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_unary_half(name, dtype):
    x = POSITIVE.astype(dtype)
    out = run(lambda b, v: getattr(b, name)(v), x)
    expected = UNARY[name][0](x.astype("float32")).astype(dtype)
    np.testing.assert_allclose(out.astype("float32"), expected.astype("float32"), rtol=1e-2)


def test_digamma_and_erf_inv():
    # Differences of digamma are sums of reciprocals; erf_inv undoes erf.
    out = run(lambda b, v: b.digamma(v), np.array([1.0, 2.0, 3.0, 0.5]))
    gamma = 0.5772156649015329
    expected = [-gamma, 1 - gamma, 1.5 - gamma, -gamma - 2 * math.log(2)]
    np.testing.assert_allclose(out, expected, rtol=1e-9)
    back = run(lambda b, v: b.erf_inv(b.erf(v)), UNIT)
    np.testing.assert_allclose(back, UNIT, atol=1e-9)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64"])
def test_integer_unary(dtype):
    x = np.array([0, 1, 5, 64], dtype)
    bits = x.dtype.itemsize * 8
    assert run(lambda b, v: b.popcount(v), x).tolist() == [0, 1, 2, 1]
    leading = [bits - int(v).bit_length() for v in x]
    assert run(lambda b, v: b.count_leading_zeros(v), x).tolist() == leading
    np.testing.assert_array_equal(run(lambda b, v: b.not_(v), x), ~x)


def test_predicates_and_complex_parts():
    assert run(lambda b, v: b.is_finite(v), SPECIAL).tolist() == [False, False, False, True]
    assert run(lambda b, v: b.not_(v), np.array([True, False])).tolist() == [False, True]
    z = np.array([3 + 4j, -1 - 0.5j], np.complex64)
    real, imag, size, back = run(
        lambda b, v: (b.real(v), b.imag(v), b.abs(v), b.complex_(b.real(v), b.imag(v))), z
    )
    np.testing.assert_array_equal(real, z.real)
    np.testing.assert_array_equal(imag, z.imag)
    np.testing.assert_allclose(size, np.abs(z), rtol=1e-6)
    np.testing.assert_array_equal(back, z)


BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
}


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "uint32", "float32", "float64"])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, dtype):
    a, b = np.array([1, 2, 3, 7], dtype), np.array([2, 2, 1, 2], dtype)
    out = run(lambda builder, x, y: getattr(builder, name)(x, y), a, b)
    np.testing.assert_allclose(out, BINARY[name](a, b), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_division_truncates(dtype):
    a, b = np.array([7, -7, 7, -7], dtype), np.array([2, 2, -2, -2], dtype)
    quotient, rest = run(lambda c, x, y: (c.divide(x, y), c.remainder(x, y)), a, b)
    exact = a.astype("float64") / b
    expected = np.trunc(exact) if dtype == "int32" else exact
    np.testing.assert_array_equal(quotient, expected)
    np.testing.assert_array_equal(rest, np.fmod(a, b))


def test_atan2_and_nan_maximum():
    a, b = np.array([1.0, -1.0, 0.0]), np.array([-1.0, 1.0, -2.0])
    out = run(lambda c, x, y: c.atan2(x, y), a, b)
    np.testing.assert_allclose(out, np.arctan2(a, b))
    out = run(lambda c, x, y: c.maximum(x, y), SPECIAL, np.zeros(4))
    np.testing.assert_array_equal(out, np.maximum(SPECIAL, 0))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32"])
def test_logic(dtype):
    a, b = np.array([0, 1, 1, 0]).astype(dtype), np.array([1, 1, 0, 0]).astype(dtype)
    outs = run(lambda c, x, y: (c.and_(x, y), c.or_(x, y), c.xor(x, y)), a, b)
    for out, expected in zip(outs, (a & b, a | b, a ^ b), strict=True):
        np.testing.assert_array_equal(out, expected)


def test_shifts():
    a, b = np.array([-8, 8, 127], np.int8), np.array([1, 2, 3], np.int8)
    left, arithmetic, logical = run(
        lambda c, x, y: (
            c.shift_left(x, y),
            c.shift_right_arithmetic(x, y),
            c.shift_right_logical(x, y),
        ),
        a,
        b,
    )
    np.testing.assert_array_equal(left, a << b)
    np.testing.assert_array_equal(arithmetic, a >> b)
    np.testing.assert_array_equal(logical, (a.view(np.uint8) >> b.view(np.uint8)).view(np.int8))


DIRECTIONS = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "uint64", "float32"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_compare(direction, dtype):
    # 200 is negative as int8: a signed comparison of unsigned values would show.
    left = np.array([0, 1, 1, 200]).astype(dtype)
    right = np.array([1, 1, 0, 100]).astype(dtype)
    out = run(lambda b, x, y: b.compare(x, y, direction), left, right)
    np.testing.assert_array_equal(out, DIRECTIONS[direction](left, right))


def test_compare_type_follows_the_dtype():
    def body(b, x, i, u):
        return (
            b.compare(x, x, "LT"),
            b.compare(x, x, "LT", total_order=True),
            b.compare(i, i, "LT"),
            b.compare(u, u, "LT"),
        )

    text = program(body, tensor(2), tensor(2, dtype="int8"), tensor(2, dtype="uint8")).text
    compares = [line for line in text.splitlines() if "stablehlo.compare" in line]
    for line, kind in zip(compares, ("FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"), strict=True):
        assert f", {kind} :" in line


def test_compare_complex_equality():
    a, b = np.array([1 + 1j, 2.0]), np.array([1 + 1j, 2j])
    assert run(lambda c, x, y: c.compare(x, y, "EQ"), a, b).tolist() == [True, False]


def test_select_and_clamp():
    mask, x, y = np.array([True, False, True]), np.arange(3.0), -np.arange(3.0)
    out = run(lambda b, p, u, v: b.select(p, u, v), mask, x, y)
    np.testing.assert_array_equal(out, np.where(mask, x, y))
    out = run(lambda b, p, u, v: b.select(p, u, v), np.array(False), x, y)
    np.testing.assert_array_equal(out, y)
    out = run(lambda b, low, u, high: b.clamp(low, u, high), np.array(0.5), x, np.array(1.5))
    np.testing.assert_array_equal(out, np.clip(x, 0.5, 1.5))


@pytest.mark.parametrize(
    ("values", "source", "target", "expected"),
    [
        ([1.9, -1.9, 0.0], "float32", "int32", [1, -1, 0]),
        ([0.5, 0.0, -2.0], "float32", "bool", [True, False, True]),
        ([True, False], "bool", "float64", [1.0, 0.0]),
        ([300, -1], "int32", "uint8", [44, 255]),
        ([1.0, 2.5], "float64", "complex64", [1 + 0j, 2.5 + 0j]),
        ([7, -8], "int32", "int4", [7, -8]),
        ([1.25, -3.0], "float32", "bfloat16", [1.25, -3.0]),
        ([1.25, -448.0], "float32", "float8_e4m3fn", [1.25, -448.0]),
    ],
)
def test_convert(values, source, target, expected):
    out = run(lambda b, x: b.convert(x, target), np.array(values, source))
    assert out.astype(np.asarray(expected).dtype).tolist() == expected


def test_what_a_float_was_before_it_was_rounded():
    builder = Builder([TensorType((2,), dtypes.of("float32"))], excess_precision=True)
    (x,) = builder.parameters
    narrow = builder.convert(x, "bfloat16")
    assert narrow.exact is x
    assert (narrow.rounded.exact, narrow.rounded.type) == (None, narrow.type)
    assert builder.add(narrow, narrow).exact is None
    for target in ("float64", "int32", "bool", "float32"):
        assert builder.convert(x, target).exact is None
    assert builder.convert(builder.convert(x, "int32"), "int8").exact is None
    forgetful = Builder([TensorType((2,), dtypes.of("float32"))])
    assert forgetful.convert(forgetful.parameters[0], "bfloat16").exact is None


def test_bitcast_convert():
    x = np.array([1.0, -0.0], np.float32)
    same, narrow = run(
        lambda b, v: (b.bitcast_convert(v, "int32"), b.bitcast_convert(v, "uint16")), x
    )
    np.testing.assert_array_equal(same, x.view(np.int32))
    np.testing.assert_array_equal(narrow, x.view(np.uint16).reshape(2, 2))
    back = run(lambda b, v: b.bitcast_convert(v, "float32"), narrow)
    np.testing.assert_array_equal(back, x)


def test_reduce_precision():
    x = np.array([1.0 + 2**-20, 3.14159], np.float32)
    out = run(lambda b, v: b.reduce_precision(v, 8, 7), x)
    np.testing.assert_array_equal(out, x.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize(
    ("call", "needles"),
    [
        (lambda b, x, y, i: b.add(x, y), ["stablehlo.add", "f32[2]", "f32[3]"]),
        (lambda b, x, y, i: b.add(x, i), ["stablehlo.add", "f32[2]", "i32[2]"]),
        (lambda b, x, y, i: b.sqrt(i), ["stablehlo.sqrt", "i32[2]"]),
        (lambda b, x, y, i: b.erf(i), ["chlo.erf", "i32[2]"]),
        (lambda b, x, y, i: b.not_(x), ["stablehlo.not", "f32[2]"]),
        (lambda b, x, y, i: b.select(x, x, x), ["stablehlo.select"]),
        (lambda b, x, y, i: b.compare(x, x, "??"), ["direction '??'"]),
        (lambda b, x, y, i: b.compare(i, i, "EQ", total_order=True), ["total order", "int32"]),
        (lambda b, x, y, i: b.compare(x, i, "EQ"), ["stablehlo.compare", "f32[2]", "i32[2]"]),
        (lambda b, x, y, i: b.bitcast_convert(y, "float64"), ["bitcast_convert", "f32[3]"]),
        (lambda b, x, y, i: b.complex_(i, i), ["stablehlo.complex", "i32[2]"]),
        (lambda b, x, y, i: b.add(x, 1.0), ["operand 1 must be a Value", "float"]),
        (lambda b, x, y, i: b.iota((2, 3), 2, "int32"), ["stablehlo.iota"]),
    ],
)
def test_malformed_operations_raise_at_the_call(call, needles):
    def body(b, x, y, i):
        with pytest.raises(ProgramError) as caught:
            call(b, x, y, i)
        for needle in needles:
            assert needle in str(caught.value)
        return x

    text = program(body, tensor(2), tensor(3), tensor(2, dtype="int32")).text
    assert "stablehlo." not in text
    assert "chlo." not in text
