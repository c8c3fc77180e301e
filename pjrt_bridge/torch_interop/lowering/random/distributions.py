"""Random numbers, from words that are a function of a key and of an element's position.

The operators are those of `torch_interop/randomness`: ATen's, with a key before their arguments.
The numbers have ATen's documented range and distribution, from another stream: [0, 1) for uniform
numbers with as many bits as ATen takes, above 0 for exponential ones, finite normal ones. The same
functions, on NumPy's arrays, run where PyTorch runs the operators (`randomness/host.py`), so all of
them are elementwise; the others are in `choice.py`.

Conversions from integers are exact, or round to nearest: masks and uniform numbers are the same
everywhere. Results of logarithms may differ in the last bits from plugin to plugin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import (
    FLOAT32,
    INT32,
    INT64,
    Context,
    Operand,
    Scalar,
    compute_type,
)
from pjrt_bridge.torch_interop.lowering.numbers import FLOAT64, Number, minus, over
from pjrt_bridge.torch_interop.lowering.random.threefry import UINT32, UINT64, words
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering

_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""Bits of a uniform number: as many as a significand holds, so that none is rounded to 1."""

_LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
"""Small numbers that are not 0, also on hardware that flushes subnormal numbers of 32 bits to 0."""

_PREFIX = "pjrt_bridge"


def _times(b: Builder, x: Value, factor: float) -> Value:
    return b.multiply(x, b.full(x.shape, factor, x.dtype))


def _plus(b: Builder, x: Value, addend: float) -> Value:
    return b.add(x, b.full(x.shape, addend, x.dtype))


def _top(b: Builder, word: Value, bits: int) -> Value:
    """The top bits of words."""
    return b.shift_right_logical(word, b.full(word.shape, 32 - bits, UINT32))


# -- standard distributions ------------------------------------------------------------------------


def unit(c: Context, key: Value, shape: Sequence[int], dtype: DType, lane: int = 0) -> Value:
    """Numbers in [0, 1), all exact in `dtype`, in the type that it is computed in."""
    b, bits = c.b, _BITS[dtype.name]
    first, second = words(b, key, shape, lane)
    if bits <= 32:
        return _times(b, b.convert(b.convert(_top(b, first, bits), INT32), FLOAT32), 2.0**-bits)
    high, low = (b.convert(_top(b, word, at), FLOAT64) for word, at in ((first, 26), (second, 27)))
    return _times(b, b.add(_times(b, high, 2.0**27), low), 2.0**-53)


def positive_unit(c: Context, key: Value, shape: Sequence[int], wide: DType) -> Value:
    """Numbers in (0, 1]; in float32 with steps of 2**-32 near 0."""
    b = c.b
    if wide == FLOAT64:
        return _plus(b, unit(c, key, shape, wide), 2.0**-53)
    whole = b.convert(words(b, key, shape)[0], FLOAT32)
    return _times(b, b.maximum(whole, b.full(whole.shape, 0.5, FLOAT32)), 2.0**-32)


def standard_exponential(c: Context, key: Value, shape: Sequence[int], wide: DType) -> Value:
    """Exponential numbers of rate 1, all above 0."""
    b = c.b
    drawn = b.negate(b.log(positive_unit(c, key, shape, wide)))
    # The logarithm of a number rounded to 1 is 0; this is about the mean of the rounded numbers.
    least = 2.0**-26 if wide == FLOAT32 else 2.0**-54
    return b.maximum(drawn, b.full(drawn.shape, least, wide))


def standard_normal(c: Context, key: Value, shape: Sequence[int], wide: DType) -> Value:
    """Normal numbers of mean 0 and deviation 1, at most 6.4 (float32) or 8.6 away from 0."""
    if wide == FLOAT32:
        return _normal32(c, key, shape)
    # Box and Muller, 1958.
    b = c.b
    radius = b.sqrt(_times(b, b.log(positive_unit(c, key, shape, wide)), -2.0))
    angle = _times(b, unit(c, key, shape, wide, lane=1), 2 * math.pi)
    return b.multiply(radius, b.cos(angle))


_CENTRE = (
    (3.3871327179, 50.434271938, 159.29113202, 59.109374720),
    (1.0, 17.895169469, 78.757757664, 67.187563600),
)
_TAIL = (
    (1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103),
    (1.0, 0.73700164250, 0.12021132975, 0.0),
)


def _normal32(c: Context, key: Value, shape: Sequence[int]) -> Value:
    """The quantile of a uniform number: one bit for the side, 31 for the probability beyond.

    Source: Wichura, algorithm AS 241, Applied Statistics 37 (1988): PPND7, to 7 digits.
    """
    b = c.b
    word = words(b, key, shape)[0]
    full = partial(b.full, word.shape)
    magnitude = b.convert(b.convert(b.and_(word, full(0x7FFFFFFF, UINT32)), INT32), FLOAT32)
    beyond = _times(b, _plus(b, magnitude, 0.5), 2.0**-32)
    inside = b.subtract(full(0.5, FLOAT32), beyond)
    central = b.compare(inside, full(0.425, FLOAT32), "LE")
    near = b.subtract(full(0.180625, FLOAT32), b.multiply(inside, inside))
    far = _plus(b, b.sqrt(b.negate(b.log(beyond))), -1.6)
    at = b.select(central, near, far)

    def polynomial(which: int) -> Value:
        sum_: Value | None = None
        for pair in zip(reversed(_CENTRE[which]), reversed(_TAIL[which]), strict=True):
            coefficient = b.select(central, *(full(value, FLOAT32) for value in pair))
            sum_ = coefficient if sum_ is None else b.add(b.multiply(sum_, at), coefficient)
        assert sum_ is not None
        return sum_

    scale = b.select(central, inside, full(1, FLOAT32))
    found = b.multiply(b.divide(polynomial(0), polynomial(1)), scale)
    left = b.compare(word, full(1 << 31, UINT32), "LT")
    return b.select(left, b.negate(found), found)


def coins(c: Context, key: Value, shape: Sequence[int], probability: Number) -> Value:
    """Booleans that are True with a probability, which is rounded to 32 bits."""
    b = c.b
    if isinstance(probability, Value):
        whole = b.convert(words(b, key, shape)[0], FLOAT64)
        limit = b.round_even(_times(b, probability, 2.0**32))
        return b.compare(whole, c.broadcast(limit, whole.shape), "LT")
    threshold = round(probability * 2**32)
    if threshold >= 1 << 32:
        return b.full(tuple(shape), True, dtypes.of("bool"))
    word = words(b, key, shape)[0]
    return b.compare(word, b.full(word.shape, threshold, UINT32), "LT")


# -- uniform ---------------------------------------------------------------------------------------


@lowering(f"{_PREFIX}.rand.default", f"{_PREFIX}.rand_like.default")
def rand(c: Context, key: Value, *args: object, **kwargs: object) -> Value:
    """Uniform numbers in [0, 1)."""
    out = c.output
    return c.result(unit(c, key, out.shape, out.dtype))


@lowering(f"{_PREFIX}.uniform.default", values=("from", "to"))
def uniform(c: Context, key: Value, x: Value, low: Number = 0.0, high: Number = 1.0) -> Value:
    """Uniform numbers in [low, high); what would be rounded to `high` is `low`."""
    b, out = c.b, c.output
    width = minus(b, high, low)
    drawn = c.result(_affine(c, unit(c, key, out.shape, out.dtype), width, low))
    first, end = (c.operand(value, out.dtype, out.shape) for value in (low, high))
    return b.select(b.compare(drawn, end, "LT"), drawn, first)


def _affine(c: Context, x: Value, scale: Operand, shift: Operand) -> Value:
    """`x * scale + shift`; a factor of 1 and a shift of 0 are left out."""
    b = c.b
    if isinstance(scale, Value) or scale != 1:
        x = b.multiply(x, c.operand(scale, x.dtype, x.shape))
    if isinstance(shift, Value) or shift != 0:
        x = b.add(x, c.operand(shift, x.dtype, x.shape))
    return x


# -- integers --------------------------------------------------------------------------------------


@lowering(f"{_PREFIX}.randint.default", f"{_PREFIX}.randint_like.default")
def randint(c: Context, key: Value, *args: object, **kwargs: object) -> Value:
    """Integers from 0 to below `high`: `randint(high, size)`, `randint_like(x, high)`."""
    (high,) = (item for item in args if isinstance(item, int))
    return integers(c, key, 0, high)


@lowering(f"{_PREFIX}.randint.low")
def randint_between(
    c: Context, key: Value, low: int, high: int, *args: object, **kwargs: object
) -> Value:
    """Integers from `low` to below `high`."""
    return integers(c, key, low, high)


@lowering(f"{_PREFIX}.randint_like.low_dtype", values=("low", "high"))
def randint_like_between(
    c: Context, key: Value, x: Value, low: int | Value, high: int | Value, **kwargs: object
) -> Value:
    """Integers from `low` to below `high` in the shape of `x`."""
    if not isinstance(low, Value) and not isinstance(high, Value):
        return integers(c, key, low, high)
    b, shape = c.b, c.output.shape
    first, last = (c.operand(item, INT64, ()) for item in (low, high))
    count = c.broadcast(b.bitcast_convert(b.subtract(last, first), UINT64), shape)
    few = b.compare(count, b.full(shape, 1 << 32, UINT64), "LE")
    drawn = b.select(few, _below_few(c, key, count), _below(c, key, count))
    return c.result(b.add(b.bitcast_convert(drawn, INT64), c.broadcast(first, shape)))


def integers(c: Context, key: Value, low: int, high: int) -> Value:
    """Integers from `low` to below `high` in the shape and type of the output.

    The product of the range and a random fraction of 64 bits, or of 128 where the range has more
    than 32. Chances differ from equal ones by at most 1 in 2**32 of themselves, or in 2**64.
    """
    if low >= high:
        raise NotLowerable(f"random integers from {low} to below {high}")
    b, shape, count = c.b, c.output.shape, high - low
    below = _below_few if count <= 1 << 32 else _below
    drawn = below(c, key, b.full(shape, count, UINT64))
    return c.result(b.add(b.bitcast_convert(drawn, INT64), c.full(shape, low, INT64)))


def _below_few(c: Context, key: Value, count: Value) -> Value:
    """Integers below `count`, which is at most 2**32."""
    b = c.b
    first, second = (b.convert(word, UINT64) for word in words(b, key, count.shape))
    carried = _upper(b, b.multiply(second, count))
    return _upper(b, b.add(b.multiply(first, count), carried))


def _below(c: Context, key: Value, count: Value) -> Value:
    """Integers below `count`."""
    b = c.b
    pairs = [words(b, key, count.shape, lane) for lane in range(2)]
    first, second, *more = (b.convert(word, UINT64) for pair in pairs for word in pair)
    lower, upper = _product(b, first, second, count)
    _, carried = _product(b, more[0], more[1], count)
    one, zero = (b.full(count.shape, value, UINT64) for value in (1, 0))
    overflows = b.compare(b.add(lower, carried), carried, "LT")
    return b.add(upper, b.select(overflows, one, zero))


def _upper(b: Builder, x: Value) -> Value:
    return b.shift_right_logical(x, b.full(x.shape, 32, UINT64))


def _product(b: Builder, first: Value, second: Value, count: Value) -> tuple[Value, Value]:
    """Both halves of `(first * 2**32 + second) * count`, a number of 128 bits."""
    full = partial(b.full, first.shape)
    mask = full((1 << 32) - 1, UINT64)
    high, low = _upper(b, count), b.and_(count, mask)
    lowest = b.multiply(second, low)
    middle = b.add(b.multiply(first, low), _upper(b, lowest))
    other = b.add(b.multiply(second, high), b.and_(middle, mask))
    upper = b.add(b.multiply(first, high), b.add(_upper(b, middle), _upper(b, other)))
    lower = b.or_(b.shift_left(other, full(32, UINT64)), b.and_(lowest, mask))
    return lower, upper


# -- coins -----------------------------------------------------------------------------------------


@lowering(f"{_PREFIX}.bernoulli.p", values=("p",))
def bernoulli(c: Context, key: Value, x: Value, p: Number) -> Value:
    """1 with probability `p`, else 0."""
    return c.result(coins(c, key, c.output.shape, p))


@lowering(f"{_PREFIX}.bernoulli.Tensor")
def bernoulli_each(c: Context, key: Value, x: Value, p: Value) -> Value:
    """1 with the probability that each element of `p` is, else 0."""
    shape = c.output.shape
    wide = FLOAT64 if p.dtype == FLOAT64 else FLOAT32
    chance = c.operand(p, wide, shape)
    return c.result(c.b.compare(unit(c, key, shape, wide), chance, "LT"))


@lowering(f"{_PREFIX}.native_dropout.default", values=("p",))
def native_dropout(
    c: Context, key: Value, x: Value, p: Number, train: bool | None
) -> tuple[Value | None, ...]:
    """Elements that are kept, scaled to keep the sum, and which these are."""
    b = c.b
    if train is False:
        return c.promised(x, c.full(x.shape, True, dtypes.of("bool")))
    chance = minus(b, 1, p)
    kept = coins(c, key, x.shape, chance)
    wide = c.widen(x)
    # A product, in which NaN stays NaN as in ATen.
    masked = b.multiply(wide, c.cast(kept, wide.dtype))
    scale = 0.0 if chance == 0 else over(b, 1, chance)
    if isinstance(scale, Value):
        infinite, nothing = (c.full((), value, FLOAT64) for value in (math.inf, 0))
        scale = b.select(b.compare(scale, infinite, "LT"), scale, nothing)
    return c.promised(b.multiply(masked, c.operand(scale, wide.dtype, x.shape)), kept)


@lowering(f"{_PREFIX}.rrelu_with_noise_functional.default")
def rrelu(
    c: Context,
    key: Value,
    x: Value,
    noise: Value,
    lower: Scalar = 1 / 8,
    upper: Scalar = 1 / 3,
    training: bool = False,
) -> tuple[Value | None, ...]:
    """`x` where positive, else `x` times a uniform number; and these factors."""
    b = c.b
    assert not isinstance(lower, complex)
    assert not isinstance(upper, complex)
    wide = c.widen(x)
    positive = b.compare(wide, b.full(x.shape, 0, wide.dtype), "GT")
    if training:
        slope = _affine(c, unit(c, key, x.shape, x.dtype), upper - lower, lower)
        one = b.full(x.shape, 1, wide.dtype)
        noise = c.cast(b.select(positive, one, slope), x.dtype)
    else:
        slope = b.full(x.shape, (lower + upper) / 2, wide.dtype)
    return c.promised(b.select(positive, wide, b.multiply(wide, slope)), noise)


# -- normal and what is made of it -----------------------------------------------------------------


def _normal(c: Context, key: Value, mean: Operand, deviation: Operand) -> Value:
    out = c.output
    drawn = standard_normal(c, key, out.shape, compute_type(out.dtype))
    return _affine(c, drawn, deviation, mean)


@lowering(f"{_PREFIX}.randn.default", f"{_PREFIX}.randn_like.default")
def randn(c: Context, key: Value, *args: object, **kwargs: object) -> Value:
    """Normal numbers of mean 0 and deviation 1."""
    return c.result(_normal(c, key, 0, 1))


@lowering(f"{_PREFIX}.normal_functional.default", values=("mean", "std"))
def normal_like(c: Context, key: Value, x: Value, mean: Number = 0, std: Number = 1) -> Value:
    """Normal numbers in the shape of `x`."""
    return c.result(_normal(c, key, mean, std))


@lowering(
    f"{_PREFIX}.normal.Tensor_float",
    f"{_PREFIX}.normal.float_Tensor",
    f"{_PREFIX}.normal.Tensor_Tensor",
    f"{_PREFIX}.normal.float_float",
    values=("mean", "std"),
)
def normal(
    c: Context, key: Value, mean: Operand, std: Operand = 1, *size: object, **kwargs: object
) -> Value:
    """Normal numbers with a mean and a deviation each; a deviation below 0 is not checked."""
    return c.result(_normal(c, key, mean, std))


@lowering(f"{_PREFIX}.log_normal.default", values=("mean", "std"))
def log_normal(c: Context, key: Value, x: Value, mean: Number = 1, std: Number = 2) -> Value:
    """Exponentials of normal numbers."""
    return c.result(c.b.exp(_normal(c, key, mean, std)))


# -- others ----------------------------------------------------------------------------------------


@lowering(f"{_PREFIX}.exponential.default", values=("lambd",))
def exponential(c: Context, key: Value, x: Value, lambd: Number = 1) -> Value:
    """Exponential numbers of a rate, all above 0; those of an infinite rate are 0."""
    b, shape, wide = c.b, c.output.shape, compute_type(c.output.dtype)
    mean = c.operand(over(b, 1, lambd), wide, shape)
    drawn = b.multiply(standard_exponential(c, key, shape, wide), mean)
    positive = b.maximum(drawn, b.full(shape, _LEAST[c.output.dtype.name], wide))
    return c.result(b.select(b.compare(mean, b.full(shape, 0, wide), "EQ"), mean, positive))


@lowering(f"{_PREFIX}.geometric.default", values=("p",))
def geometric(c: Context, key: Value, x: Value, p: Number) -> Value:
    """How many trials of probability `p` it takes to succeed: 1, 2, ..."""
    b, out = c.b, c.output
    wide = FLOAT64 if out.dtype.bits >= 32 and out.dtype != FLOAT32 else FLOAT32
    drawn = standard_exponential(c, key, out.shape, wide)
    failing = b.log1p(b.negate(p)) if isinstance(p, Value) else math.log1p(-p)
    return c.result(b.ceil(b.multiply(drawn, c.full(drawn.shape, over(b, -1, failing), wide))))


@lowering(f"{_PREFIX}.cauchy.default", values=("median", "sigma"))
def cauchy(c: Context, key: Value, x: Value, median: Number = 0, sigma: Number = 1) -> Value:
    """Cauchy numbers."""
    b, out = c.b, c.output
    drawn = positive_unit(c, key, out.shape, compute_type(out.dtype))
    angle = _times(b, _plus(b, drawn, -0.5), math.pi)
    return c.result(_affine(c, b.tan(angle), sigma, median))
