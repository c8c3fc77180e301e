"""Constants and elementwise operations (StableHLO spec, "Ops").

Nothing broadcasts and nothing promotes: operands of a binary op have one type. All methods raise
`ProgramError` with the op and the operand types when the spec's constraints are violated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from numpy.typing import ArrayLike

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings, guarding, known_numbers
from pjrt_bridge.stablehlo.builder import constants
from pjrt_bridge.stablehlo.builder.emitter import Emitter
from pjrt_bridge.stablehlo.builder.values import Value
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.wrong_arguments import checked_methods

Direction = Literal["EQ", "NE", "LT", "LE", "GT", "GE"]


@checked_methods
class ElementwiseOps(Emitter):
    """Constants, conversions, unary, binary and ternary elementwise operations."""

    # -- constants --------------------------------------------------------------------------

    def constant(self, value: ArrayLike, dtype: DType | str | None = None) -> Value:
        """A constant; arrays of equal elements are encoded as a splat.

        Args:
            value: a number, nested sequence or array.
            dtype: element type; None takes NumPy's type of the value (a Python float is float64,
                a Python int int64). Floating-point types round, others must hold the values.

        Raises:
            ProgramError: values that do not fit.
        """
        attribute, tensor = self._dense(value, dtype)
        return self._emit_one("stablehlo.constant", (), {"value": attribute}, tensor)

    def full(self, shape: Sequence[int], value: complex, dtype: DType | str) -> Value:
        """A splat constant of the shape; NaN, infinities and -0.0 are exact."""
        array, element = constants.as_array(value, dtype)
        tensor = TensorType(tuple(shape), element)
        if array.ndim:
            raise ProgramError(f"full: the value must be one number, found shape {array.shape}")
        attribute = constants.dense(array, element, self._mlir_type(tensor))
        return self._emit_one("stablehlo.constant", (), {"value": attribute}, tensor)

    def iota(self, shape: Sequence[int], dim: int, dtype: DType | str) -> Value:
        """A tensor that counts 0, 1, 2, ... along one dimension."""
        tensor = TensorType(tuple(shape), dtypes.of(dtype))
        return self._emit_one("stablehlo.iota", (), {"iota_dimension": self._int(dim)}, tensor)

    def number_of(self, x: Value) -> float | None:
        """The number that all elements of a float value are; None where that is not known."""
        return known_numbers.number(self._handle("number_of", 0, x))

    # -- unary ------------------------------------------------------------------------------

    def _unary(self, op: str, x: Value) -> Value:
        return self._emit_one(op, (x,))

    def abs(self, x: Value) -> Value:
        """|x|; real for complex operands."""
        return self._unary("stablehlo.abs", x)

    def negate(self, x: Value) -> Value:
        """-x."""
        return self._unary("stablehlo.negate", x)

    def sign(self, x: Value) -> Value:
        """-1, 0 or 1; NaN stays NaN and -0.0 stays -0.0."""
        return self._unary("stablehlo.sign", x)

    def exp(self, x: Value) -> Value:
        """Exponential function."""
        return self._unary("stablehlo.exponential", x)

    def expm1(self, x: Value) -> Value:
        """exp(x) - 1, accurate near 0."""
        return self._unary("stablehlo.exponential_minus_one", x)

    def log(self, x: Value) -> Value:
        """Natural logarithm."""
        return self._unary("stablehlo.log", x)

    def log1p(self, x: Value) -> Value:
        """log(1 + x), accurate near 0."""
        return self._unary("stablehlo.log_plus_one", x)

    def sqrt(self, x: Value) -> Value:
        """Square root."""
        return self._unary("stablehlo.sqrt", x)

    def rsqrt(self, x: Value) -> Value:
        """Reciprocal square root."""
        return self._unary("stablehlo.rsqrt", x)

    def cbrt(self, x: Value) -> Value:
        """Cube root."""
        return self._unary("stablehlo.cbrt", x)

    def sin(self, x: Value) -> Value:
        """Sine."""
        return self._unary("stablehlo.sine", x)

    def cos(self, x: Value) -> Value:
        """Cosine."""
        return self._unary("stablehlo.cosine", x)

    def tan(self, x: Value) -> Value:
        """Tangent."""
        return self._unary("stablehlo.tan", x)

    def tanh(self, x: Value) -> Value:
        """Hyperbolic tangent."""
        return self._unary("stablehlo.tanh", x)

    def logistic(self, x: Value) -> Value:
        """1 / (1 + exp(-x))."""
        return self._unary("stablehlo.logistic", x)

    def floor(self, x: Value) -> Value:
        """Round down."""
        return self._unary("stablehlo.floor", x)

    def ceil(self, x: Value) -> Value:
        """Round up."""
        return self._unary("stablehlo.ceil", x)

    def round_even(self, x: Value) -> Value:
        """Round to nearest, ties to even."""
        return self._unary("stablehlo.round_nearest_even", x)

    def round_away(self, x: Value) -> Value:
        """Round to nearest, ties away from zero."""
        return self._unary("stablehlo.round_nearest_afz", x)

    def not_(self, x: Value) -> Value:
        """Logical not of booleans, bitwise not of integers."""
        return self._unary("stablehlo.not", x)

    def is_finite(self, x: Value) -> Value:
        """Whether x is neither infinite nor NaN, as bool."""
        return self._unary("stablehlo.is_finite", x)

    def popcount(self, x: Value) -> Value:
        """Number of set bits."""
        return self._unary("stablehlo.popcnt", x)

    def count_leading_zeros(self, x: Value) -> Value:
        """Number of leading zero bits."""
        return self._unary("stablehlo.count_leading_zeros", x)

    def real(self, x: Value) -> Value:
        """Real part; x itself for real operands."""
        return self._unary("stablehlo.real", x)

    def imag(self, x: Value) -> Value:
        """Imaginary part; 0 for real operands."""
        return self._unary("stablehlo.imag", x)

    # -- binary -----------------------------------------------------------------------------

    def _binary(self, op: str, lhs: Value, rhs: Value) -> Value:
        return self._emit_one(op, (lhs, rhs))

    def add(self, lhs: Value, rhs: Value) -> Value:
        """Sum; logical or of booleans."""
        return self._binary("stablehlo.add", lhs, rhs)

    def subtract(self, lhs: Value, rhs: Value) -> Value:
        """Difference."""
        return self._binary("stablehlo.subtract", lhs, rhs)

    def multiply(self, lhs: Value, rhs: Value) -> Value:
        """Product; logical and of booleans."""
        return self._binary("stablehlo.multiply", lhs, rhs)

    def divide(self, lhs: Value, rhs: Value) -> Value:
        """Quotient; integers truncate towards zero, and those divided by zero give -1."""
        return self._divided("stablehlo.divide", lhs, rhs)

    def remainder(self, lhs: Value, rhs: Value) -> Value:
        """Remainder with the sign of the dividend; integers divided by zero are their own."""
        if lhs.dtype.is_complex:
            raise ProgramError("stablehlo.remainder of complex numbers: XLA's compilers die of it")
        return self._divided("stablehlo.remainder", lhs, rhs)

    def _divided(self, op: str, lhs: Value, rhs: Value) -> Value:
        found = self._binary(op, lhs, rhs)
        if found.dtype.is_float:
            return found
        return replace(found, _handle=guarding.guarded_division(found._handle.owner))

    def power(self, lhs: Value, rhs: Value) -> Value:
        """Lhs to the power of rhs."""
        return self._binary("stablehlo.power", lhs, rhs)

    def maximum(self, lhs: Value, rhs: Value) -> Value:
        """The larger one; NaN wins."""
        return self._binary("stablehlo.maximum", lhs, rhs)

    def minimum(self, lhs: Value, rhs: Value) -> Value:
        """The smaller one; NaN wins."""
        return self._binary("stablehlo.minimum", lhs, rhs)

    def atan2(self, lhs: Value, rhs: Value) -> Value:
        """Angle of the point (rhs, lhs)."""
        return self._binary("stablehlo.atan2", lhs, rhs)

    def and_(self, lhs: Value, rhs: Value) -> Value:
        """Logical and of booleans, bitwise and of integers."""
        return self._binary("stablehlo.and", lhs, rhs)

    def or_(self, lhs: Value, rhs: Value) -> Value:
        """Logical or of booleans, bitwise or of integers."""
        return self._binary("stablehlo.or", lhs, rhs)

    def xor(self, lhs: Value, rhs: Value) -> Value:
        """Logical or bitwise exclusive or."""
        return self._binary("stablehlo.xor", lhs, rhs)

    def shift_left(self, lhs: Value, rhs: Value) -> Value:
        """Lhs shifted left by rhs bits."""
        return self._binary("stablehlo.shift_left", lhs, rhs)

    def shift_right_arithmetic(self, lhs: Value, rhs: Value) -> Value:
        """Lhs shifted right by rhs bits, with copies of the sign bit."""
        return self._binary("stablehlo.shift_right_arithmetic", lhs, rhs)

    def shift_right_logical(self, lhs: Value, rhs: Value) -> Value:
        """Lhs shifted right by rhs bits, with zeros."""
        return self._binary("stablehlo.shift_right_logical", lhs, rhs)

    def complex_(self, real: Value, imag: Value) -> Value:
        """Complex numbers from float32 or float64 parts."""
        return self._binary("stablehlo.complex", real, imag)

    def compare(
        self, lhs: Value, rhs: Value, direction: Direction, *, total_order: bool = False
    ) -> Value:
        """Elementwise comparison, as bool.

        Args:
            lhs: left operand.
            rhs: right operand, of the same type.
            direction: EQ, NE, LT, LE, GT or GE.
            total_order: order floats by IEEE-754 totalOrder (-NaN < -inf < ... < NaN, -0 < 0).

        Raises:
            ProgramError: different types, an unknown direction.
        """
        op = "stablehlo.compare"
        if direction not in ("EQ", "NE", "LT", "LE", "GT", "GE"):
            raise ProgramError(f"{op}: direction {direction!r} is none of EQ NE LT LE GT GE")
        dtype = lhs.dtype
        if total_order and not dtype.is_float:
            raise ProgramError(f"{op}: total order is for floating-point types, found {dtype}")
        if dtype.is_float or dtype.is_complex:
            kind = "TOTALORDER" if total_order else "FLOAT"
        else:
            kind = "SIGNED" if dtype.is_signed_integer else "UNSIGNED"
        dialect = bindings.load().stablehlo
        attributes = {
            "comparison_direction": dialect.ComparisonDirectionAttr.get(direction, self._context),
            "compare_type": dialect.ComparisonTypeAttr.get(kind, self._context),
        }
        return self._emit_one(op, (lhs, rhs), attributes)

    # -- ternary and conversions ------------------------------------------------------------

    def select(self, pred: Value, on_true: Value, on_false: Value) -> Value:
        """`on_true` where `pred` (same shape or a scalar) holds, else `on_false`."""
        return self._emit_one("stablehlo.select", (pred, on_true, on_false))

    def clamp(self, low: Value, x: Value, high: Value) -> Value:
        """min(max(x, low), high); the bounds have x's shape or are scalars."""
        return self._emit_one("stablehlo.clamp", (low, x, high))

    def convert(self, x: Value, dtype: DType | str) -> Value:
        """The values in another element type (float to integer truncates; to bool: x != 0)."""
        target = TensorType(x.shape, dtypes.of(dtype))
        value = self._emit_one("stablehlo.convert", (x,), None, target)
        floats = x.dtype.is_float and target.dtype.is_float
        if self._excess_precision and floats and target.dtype.bits < x.dtype.bits:
            return replace(value, exact=x)
        return replace(value, widened=x) if x.dtype.bits < target.dtype.bits else value

    def bitcast_convert(self, x: Value, dtype: DType | str) -> Value:
        """The bits as another element type.

        A narrower target adds a last dimension of size old bits / new bits; a wider one takes the
        last dimension away.
        """
        target = dtypes.of(dtype)
        shape = x.shape
        if target.bits < x.dtype.bits:
            shape = (*shape, x.dtype.bits // target.bits)
        elif target.bits > x.dtype.bits:
            shape = shape[:-1]
        op = "stablehlo.bitcast_convert"
        return self._emit_one(op, (x,), None, TensorType(shape, target))

    def reduce_precision(self, x: Value, exponent_bits: int, mantissa_bits: int) -> Value:
        """Round x through a format with these numbers of bits and back."""
        i32 = self._ir.IntegerType.get_signless(32, self._context)
        attributes = {
            "exponent_bits": self._ir.IntegerAttr.get(i32, exponent_bits),
            "mantissa_bits": self._ir.IntegerAttr.get(i32, mantissa_bits),
        }
        return self._emit_one("stablehlo.reduce_precision", (x,), attributes)
