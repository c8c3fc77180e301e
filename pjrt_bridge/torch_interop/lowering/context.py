"""The context of a lowering: the builder, the promised outputs, and ATen's common rules.

Type promotion, NumPy broadcasting, the wider type that ATen's CPU kernels compute half precision
in, and dimension arguments that may be negative are stated once, here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import Any

import torch

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.kernel_attributes import Reduction
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable

Scalar = bool | int | float | complex
"""A Python number in a graph's arguments."""

Operand = Value | Scalar
"""An argument that ATen takes as a tensor or as a number."""

OptionalValues = tuple[Value | None, ...]
"""Results of an operator; None for those that nobody reads."""


class MemoryOrder(Enum):
    """How a tensor lies in torch's memory."""

    WHOLE = "row-major, from the start of its storage on"
    PART = "row-major, from a later element on, or from one that is not known"
    OTHER = "not row-major"


BOOL = dtypes.of("bool")
INT32 = dtypes.of("int32")
INT64 = dtypes.of("int64")
FLOAT32 = dtypes.of("float32")
FLOAT8_E4M3FN = dtypes.of("float8_e4m3fn")
FLOAT8_E8M0FNU = dtypes.of("float8_e8m0fnu")


def compute_type(dtype: DType) -> DType:
    """The type that ATen's CPU kernels compute in (its `opmath_t`): float32 for narrower floats."""
    return FLOAT32 if dtype.is_float and dtype.bits < 32 else dtype


def rounded_to(b: Builder, x: Value, dtype: DType) -> Value:
    """Numbers of float32 rounded to a narrower float, in float32.

    A compiler may leave out that results of a narrower type are rounded; this it does not. The
    numbers have to be far from the ends of the range of exponents.
    """
    if x.dtype == dtype:
        return x
    mantissa = {"float16": 10, "bfloat16": 7}[str(dtype)]
    return b.reduce_precision(x, 8, mantissa)


def normalize_dim(dim: int, rank: int) -> int:
    """`dim` counted from the front; a 0-d tensor counts as one dimension, as in ATen."""
    size = max(rank, 1)
    if not -size <= dim < size:
        raise NotLowerable(f"dimension {dim} is out of range for a tensor of rank {rank}")
    return dim % size


def normalize_dims(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """The dimensions of a reduction, sorted; None and an empty list mean all of them."""
    if rank == 0:
        return ()
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(rank))
    chosen = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted({normalize_dim(d, rank) for d in chosen}))


def per_axis(values: int | Sequence[int], count: int) -> list[int]:
    """A window parameter spelled out per spatial dimension; ATen lets one value stand for all."""
    given = [values] if isinstance(values, int) else list(values)
    return given * count if len(given) == 1 else given


def number(value: Scalar, dtype: DType) -> Scalar:
    """`value` as an element of `dtype`: integers wrap, floats lose their fraction for integers.

    Raises:
        NotLowerable: no such element, e.g. infinity as an integer.
    """
    if dtype.is_bool:
        return bool(value)
    if dtype.is_complex:
        return complex(value)
    if isinstance(value, complex):
        raise NotLowerable(f"the complex number {value} cannot become {dtype}")
    if not dtype.is_integer:
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise NotLowerable(f"{value} cannot become {dtype}")
    wrapped = int(value) % (1 << dtype.bits)
    if dtype.is_signed_integer and wrapped >> (dtype.bits - 1):
        wrapped -= 1 << dtype.bits
    return wrapped


@cache
def _takes_the_least() -> bool:
    """Whether PyTorch makes the least integer of any float that no integer can hold, and of NaN.

    C++ leaves it open; processors of x86 do that, those of ARM take the nearest integer.
    """
    return bool(torch.tensor([math.inf], device="cpu").to(torch.int32).lt(0).all())


@cache
def _eight_bits_saturate() -> bool:
    """Whether PyTorch makes the largest `float8_e4m3fn` of what is larger; older versions: NaN."""
    return bool(
        torch.tensor([math.inf], device="cpu").to(torch.float8_e4m3fn).float().isfinite().all()
    )


def lowest(dtype: DType) -> Scalar:
    """The identity of a maximum: -inf, the smallest integer, or False."""
    if dtype.is_bool:
        return False
    if dtype.is_integer:
        return -(1 << (dtype.bits - 1)) if dtype.is_signed_integer else 0
    return -math.inf


def highest(dtype: DType) -> Scalar:
    """The identity of a minimum: +inf, the largest integer, or True."""
    if dtype.is_bool:
        return True
    if dtype.is_integer:
        return (1 << (dtype.bits - dtype.is_signed_integer)) - 1
    return math.inf


def result_type(x: Operand, y: Operand) -> DType:
    """The type that two operands are promoted to (`torch.result_type`).

    Tensors with dimensions outrank 0-d tensors, which outrank numbers, within one category.
    """
    return dtypes.from_torch(torch.result_type(_stand_in(x), _stand_in(y)))


def _stand_in(x: Operand) -> torch.Tensor | Scalar:
    if not isinstance(x, Value):
        return x
    name = x.dtype.torch
    if name is None:
        raise NotLowerable(f"torch has no element type {x.dtype}")
    return torch.empty((1,) if x.rank else (), dtype=getattr(torch, name), device="meta")


def _no_graphs(graph: Any, arguments: Sequence[Any]) -> tuple[Any, ...]:
    raise NotLowerable("a graph within it cannot be lowered here")


class Context:
    """One node that is being lowered.

    Attributes:
        b: the builder that the lowering emits into.
        outputs: shape and element type that torch promises for each output, None for a None.
        input_order: how the first tensor argument lies in torch's memory. Values have no strides
            and no storage; some operators (`as_strided`, determinants) depend on them.
        inline: emits a graph that is an argument of a higher-order operator, on values and numbers
            for its arguments; gives its outputs.
        kernels: compute products, convolutions and reductions.
        same_operator_count: returns how many nodes of the graph call the same operator.
    """

    def __init__(
        self,
        b: Builder,
        outputs: Sequence[TensorType | None],
        *,
        input_order: MemoryOrder = MemoryOrder.OTHER,
        inline: Callable[[Any, Sequence[Any]], tuple[Any, ...]] | None = None,
        same_operator_count: Callable[[], int] = lambda: 1,
    ) -> None:
        self.b = b
        self.outputs = tuple(outputs)
        self.input_order = input_order
        self.inline = _no_graphs if inline is None else inline
        self.kernels = Kernels()
        self.same_operator_count = same_operator_count

    def with_kernels(self, kernels: Kernels) -> Context:
        """The same node, computed by other kernels."""
        other = copy.copy(self)
        other.kernels = kernels
        return other

    @property
    def output(self) -> TensorType:
        """The only, or the first, output."""
        first = self.outputs[0]
        if first is None:
            raise NotLowerable("the operator's first output is no tensor here")
        return first

    def full(self, shape: Sequence[int], value: Operand, dtype: DType) -> Value:
        """A tensor filled with `value`, converted as ATen converts a number to `dtype`.

        A number of the call may be a 0-d value, see `values` of `registry.lowering`.
        """
        if isinstance(value, Value):
            return self.broadcast(self.cast(value, dtype), shape)
        return self.b.full(tuple(shape), number(value, dtype), dtype)

    def zeros(self, output: int) -> Value:
        """Zeros in the shape and type of an output: for outputs that are not used."""
        promised = self.outputs[output]
        if promised is None:
            raise NotLowerable(f"output {output} is no tensor here")
        return self.full(promised.shape, 0, promised.dtype)

    def cast(self, x: Value, dtype: DType) -> Value:
        """`x.to(dtype)`: floats are truncated to integers, bool is `x != 0`, NaN is True.

        Integers out of range of a narrow type wrap around; `_truncated` says what floats do.
        """
        if x.dtype == dtype:
            return x
        if x.dtype.is_complex and dtype.is_bool:
            return self.b.compare(x, self.full(x.shape, 0, x.dtype), "NE")
        if x.dtype.is_complex and not dtype.is_complex:
            return self.cast(self.b.real(x), dtype)
        if x.dtype.is_bool and not dtype.is_integer:
            # XLA makes `y * convert(mask)` a selection, in which a NaN of `y` would be lost.
            one, zero = (self.full(x.shape, value, dtype) for value in (1, 0))
            return self.b.select(x, one, zero)
        if x.dtype.is_float and dtype.is_integer:
            return self._truncated(x, dtype)
        if x.dtype.is_float and dtype in (FLOAT8_E4M3FN, FLOAT8_E8M0FNU):
            x = self.b.convert(x, FLOAT32) if x.dtype.bits < 32 else x
            return self._exponent(x) if dtype == FLOAT8_E8M0FNU else self._saturated(x)
        return self.b.convert(x, dtype)

    def _truncated(self, x: Value, dtype: DType) -> Value:
        """Floats as integers, as PyTorch makes them on this processor.

        Narrow ones are the lowest bits of wider ones; a conversion of XLA's saturates.
        """
        wide = dtype
        if dtype.bits < 32:
            wide = INT64 if x.dtype.bits == 64 and dtype.is_unsigned_integer else INT32
        if x.dtype.bits < 32:
            x = self.b.convert(x, FLOAT32)
        found = self.b.convert(x, wide)
        if wide.is_signed_integer and _takes_the_least():
            bound = 2 ** (wide.bits - 1)
            fits = self.b.compare(x, self.full(x.shape, float(bound), x.dtype), "LT")
            found = self.b.select(fits, found, self.full(x.shape, -bound, wide))
        return found if wide == dtype else self.b.convert(found, dtype)

    def _saturated(self, x: Value) -> Value:
        """Floats as `float8_e4m3fn`, as PyTorch makes them."""
        if _eight_bits_saturate():
            largest = torch.finfo(torch.float8_e4m3fn).max
            high, low = (self.full(x.shape, bound, x.dtype) for bound in (largest, -largest))
            x = self.b.maximum(self.b.minimum(x, high), low)
        return self.b.convert(x, FLOAT8_E4M3FN)

    def _exponent(self, x: Value) -> Value:
        """Floats as `float8_e8m0fnu`, which has neither signs nor 0: 0 is its least number."""
        magnitude = self.b.abs(x)
        normal = self.full(x.shape, torch.finfo(torch.float32).tiny, x.dtype)
        least = self.full(x.shape, torch.finfo(torch.float8_e8m0fnu).tiny, FLOAT8_E8M0FNU)
        vanishes = self.b.compare(magnitude, normal, "LT")
        return self.b.select(vanishes, least, self.b.convert(magnitude, FLOAT8_E8M0FNU))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """The elements of `x`, row-major, in another shape."""
        return x if x.shape == tuple(shape) else self.b.reshape(x, tuple(shape))

    def broadcast(self, x: Value, shape: Sequence[int]) -> Value:
        """`x.expand(shape)` under NumPy's rules: aligned at the last dimension."""
        target = tuple(shape)
        if x.shape == target:
            return x
        offset = len(target) - x.rank
        if offset < 0 or any(n not in (1, target[offset + d]) for d, n in enumerate(x.shape)):
            raise NotLowerable(f"shape {x.shape} does not broadcast to {target}")
        # broadcast_in_dim expands size-1 dimensions itself.
        return self.b.broadcast_in_dim(x, target, tuple(range(offset, len(target))))

    def operand(self, x: Operand, dtype: DType, shape: Sequence[int]) -> Value:
        """A tensor or number converted to `dtype` and broadcast to `shape`."""
        return self.full(shape, x, dtype)

    def arithmetic(self, *operands: Operand) -> list[Value]:
        """The operands of pointwise arithmetic: in the output's compute type and shape.

        Half-precision results are computed in float32 of operands that are rounded to the output's
        type, numbers and 0-d tensors too, as ATen's TensorIterator does.
        """
        out = self.output
        return [
            self.broadcast(self.widen(self._of_output_type(x)), out.shape)
            if isinstance(x, Value)
            else self.widen(self.full(out.shape, x, out.dtype))
            for x in operands
        ]

    def _of_output_type(self, x: Value) -> Value:
        converted = self.cast(x, self.output.dtype)
        return converted if x.rank else converted.rounded

    def factor(self, x: Operand) -> Value:
        """An operand of `arithmetic` that keeps its float32 value if it is a number, or 0-d.

        ATen computes so with factors, divisors and weights (`opmath_t` in BinaryOpsKernel.cpp).
        """
        if isinstance(x, Value) and x.rank:
            return self.arithmetic(x)[0]
        return self.operand(x, compute_type(self.output.dtype), self.output.shape)

    def result(self, x: Value) -> Value:
        """`x` rounded to the output's element type."""
        return self.cast(x, self.output.dtype)

    def promised(self, *results: Value | None) -> tuple[Value | None, ...]:
        """Several results in the shapes and element types of the outputs; None stays None."""
        return tuple(
            None if x is None or out is None else self.reshape(self.cast(x, out.dtype), out.shape)
            for x, out in zip(results, self.outputs, strict=True)
        )

    def widen(self, x: Value, dtype: DType | None = None) -> Value:
        """`unrounded` in the compute type of `dtype`, by default of the type of `x`."""
        return self.unrounded(x, compute_type(x.dtype if dtype is None else dtype))

    def unrounded(self, x: Value, dtype: DType) -> Value:
        """`x` before it was rounded, where that is known and has the type; else `cast`."""
        return x.exact if x.exact is not None and x.exact.dtype == dtype else self.cast(x, dtype)

    def precise(self, *values: Value) -> list[Value]:
        """Values of one type, unrounded where that is known; for lowerings that select among them.

        Returned unchanged where no unrounded value is known, else all in the compute type.
        """
        if all(x.exact is None for x in values):
            return list(values)
        return [self.widen(x) for x in values]

    def reduce(self, reduction: Reduction, x: Value, dims: Sequence[int]) -> Value:
        """`x` reduced over `dims` by the kernels."""
        return self.kernels.reduce(self.b, reduction, x, dims)

    def spread(self, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        """`x`, whose dimensions are those of `shape` without `dims`, repeated along these."""
        kept = tuple(d for d in range(len(shape)) if d not in set(dims))
        return self.b.broadcast_in_dim(x, tuple(shape), kept)

    def along(self, x: Value, shape: Sequence[int], dim: int) -> Value:
        """A vector laid along dimension `dim` of `shape`, repeated in the others."""
        return self.b.broadcast_in_dim(x, tuple(shape), (dim,))
