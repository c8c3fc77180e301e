"""Patterns of one operation: products, convolutions, reductions."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import bindings
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.kernel_attributes import Convolution
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.patterns import reading
from pjrt_bridge.stablehlo.types import TensorType


class Multiply(Protocol):
    """Emits a product of matrices, as `Kernels.product`; None where it has none."""

    def __call__(
        self, b: Builder, x: Value, y: Value, /, *, accumulator: DType, dtype: DType
    ) -> Value | None:
        """See the class."""


def product(multiply: Multiply, b: Builder, operation: Operation) -> Sequence[Value] | None:
    """`dot_general`, as a product of matrices in batches."""
    sides = _sides(reading.Product.of(operation.handle), operation.operands)
    if sides is None:
        return None
    with b.as_precise_as(operation.handle):
        return _product(multiply, b, *sides, operation.results[0])


def transposed_product(
    kernels: Kernels, b: Builder, operation: Operation
) -> Sequence[Value] | None:
    """`transpose` of a `dot_general` that nothing else reads: the product in the other order.

    So JAX writes gradients of weights. XLA's compiler for CPU transposes what it has computed. What
    is transposed once more, as for `x @ weight.T`, is left: the two may undo each other.
    """
    if any(use.owner.operation.name == operation.name for use in operation.handle.results[0].uses):
        return None
    source = operation.handle.operands[0]
    found = reading.product_of(source)
    if found is None or len(list(source.uses)) != 1:
        return None
    sides = _sides(found, [operation.value(item) for item in found.handle.operands])
    if sides is None:
        return None
    left, right = sides
    batch = len(left.batch)
    middle, rank = batch + len(left.others), batch + len(left.others) + len(right.others)
    swapped = [*range(batch), *range(middle, rank), *range(batch, middle)]
    if not batch < middle < rank:
        return None
    if _integers(operation.handle.attributes, "permutation", ()) != swapped:
        return None
    with b.as_precise_as(found.handle):
        return _product(kernels.product, b, right, left, operation.results[0])


class _Side(NamedTuple):
    """An operand of a product, and its dimensions: of batches, those summed over, and others."""

    value: Value
    batch: Sequence[int]
    summed: Sequence[int]
    others: Sequence[int]


def _sides(product: reading.Product, operands: Sequence[Value]) -> tuple[_Side, _Side] | None:
    """The operands of a `dot_general`; None of one that is no plain product."""
    x, y = operands
    if x.dtype != y.dtype or "algorithm" in product.handle.attributes:
        return None
    left, right = (
        _Side(value, product.batch[side], product.summed[side], product.free(side))
        for side, value in enumerate(operands)
    )
    return left, right


def _product(
    multiply: Multiply, b: Builder, x: _Side, y: _Side, result: TensorType
) -> Sequence[Value] | None:
    left = _matrices(b, x.value, x.batch, x.others, x.summed)
    right = _matrices(b, y.value, y.batch, y.summed, y.others)
    accumulator = _accumulator(result.dtype)
    found = multiply(b, left, right, accumulator=accumulator, dtype=result.dtype)
    return None if found is None else [_reshaped(b, found, result.shape)]


def overwriting(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value]:
    """`dynamic_update_slice`."""
    x, part, *starts = operation.operands
    return [kernels.overwrite(b, x, part, starts)]


def convolution(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value] | None:
    """`convolution` whose window is not reversed."""
    x, weight = operation.operands
    (result,) = operation.results
    attributes = operation.handle.attributes
    if x.dtype != weight.dtype or any(_integers(attributes, "window_reversal", ())):
        return None
    numbers = bindings.load().stablehlo.ConvDimensionNumbers(attributes["dimension_numbers"])
    ones = [1] * (x.rank - 2)
    padding = _integers(attributes, "padding", [0] * 2 * len(ones))
    how = Convolution(
        window_strides=_integers(attributes, "window_strides", ones),
        padding=list(zip(padding[::2], padding[1::2], strict=True)),
        lhs_dilation=_integers(attributes, "lhs_dilation", ones),
        rhs_dilation=_integers(attributes, "rhs_dilation", ones),
        dimension_numbers=(
            _letters(
                x.rank,
                N=numbers.input_batch_dimension,
                C=numbers.input_feature_dimension,
                spatial=numbers.input_spatial_dimensions,
            ),
            _letters(
                x.rank,
                O=numbers.kernel_output_feature_dimension,
                I=numbers.kernel_input_feature_dimension,
                spatial=numbers.kernel_spatial_dimensions,
            ),
            _letters(
                x.rank,
                N=numbers.output_batch_dimension,
                C=numbers.output_feature_dimension,
                spatial=numbers.output_spatial_dimensions,
            ),
        ),
        feature_group_count=int(attributes["feature_group_count"]),
        batch_group_count=int(attributes["batch_group_count"]),
    )
    accumulator = _accumulator(result.dtype)
    with b.as_precise_as(operation.handle):
        found = kernels.convolution(b, x, weight, how, accumulator=accumulator, dtype=result.dtype)
    return [found]


def fourier(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value]:
    """`fft`."""
    (x,) = operation.operands
    attributes = operation.handle.attributes
    lengths = _integers(attributes, "fft_length", ())
    kind = bindings.load().stablehlo.FftTypeAttr(attributes["fft_type"]).value
    return [kernels.fourier(b, x, kind, lengths)]


def _integers(attributes: Any, name: str, default: Sequence[int]) -> Sequence[int]:
    """An optional attribute; of more than one dimension in the order of its elements."""
    return [int(item) for item in attributes[name]] if name in attributes else default


def _letters(rank: int, *, spatial: Sequence[int], **named: int) -> str:
    """The letters of dimensions: of those with a name, and `a`, `b` and so on for the others."""
    at = {dim: name for name, dim in named.items()}
    at |= {int(dim): string.ascii_lowercase[index] for index, dim in enumerate(spatial)}
    return "".join(at[dim] for dim in range(rank))


def _matrices(
    b: Builder, x: Value, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]
) -> Value:
    """A side as matrices in batches, of these dimensions each.

    Dimensions are joined before they are transposed where they lie together, so that the kernel
    sees a transposition.
    """
    groups = [*((dim,) for dim in batch), tuple(rows), tuple(columns)]
    sizes = [math.prod(x.shape[dim] for dim in group) for group in groups]
    # A side without rows or columns has one of each, wherever that stands.
    order = sorted(range(len(groups)), key=lambda at: min(groups[at], default=x.rank))
    if [dim for at in order for dim in groups[at]] != list(range(x.rank)):
        x = b.transpose(x, [dim for group in groups for dim in group])
        order = sorted(order)
    joined = _reshaped(b, x, [sizes[at] for at in order])
    if order == sorted(order):
        return joined
    return b.transpose(joined, [order.index(at) for at in range(len(order))])


def _reshaped(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    return x if x.shape == tuple(shape) else b.reshape(x, tuple(shape))


def _accumulator(dtype: DType) -> DType:
    """The type that sums are computed in: half precision is rounded once."""
    return dtypes.of("float32") if dtype.is_float and dtype.bits < 32 else dtype


def reduction(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value] | None:
    """`reduce` of one array, from the value that changes nothing."""
    if len(operation.operands) != 2:
        return None
    x, _ = operation.operands
    reduction = reading.reduction_of(operation.handle)
    if reduction is None or not x.dtype.is_float:
        return None
    dims = tuple(int(dim) for dim in operation.handle.attributes["dimensions"])
    return [kernels.reduce(b, reduction, x, dims)]
