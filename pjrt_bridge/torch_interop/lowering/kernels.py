"""What most of a model's time goes into, and how StableHLO says it.

These are products, convolutions and reductions, which lowerings compute through `Context.kernels`,
and values that several of them read. A package that knows something faster for its plugin derives
from `Kernels` and brings an instance through the hook `pjrt_bridge_kernels`, so that what an
operator means is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Builder, Value

Fold = Literal["sum", "prod", "max", "min", "and", "or"]
"""How a reduction makes one element of many; as `Builder.reduce_sum` and its like define it."""


@dataclass(frozen=True)
class Convolution:
    """What a convolution does with its two sides, as `Builder.convolution` takes it.

    Attributes:
        window_strides: per spatial dimension, as all of these up to `rhs_dilation`.
        padding: zeros before and after the left side; negative ones cut.
        lhs_dilation: distance of the left side's elements.
        rhs_dilation: distance of the right side's.
        dimension_numbers: a letter for each dimension of the sides and the result.
        feature_group_count: groups of the left side's features.
        batch_group_count: groups of its batches.
    """

    window_strides: Sequence[int]
    padding: Sequence[tuple[int, int]]
    lhs_dilation: Sequence[int]
    rhs_dilation: Sequence[int]
    dimension_numbers: tuple[str, str, str]
    feature_group_count: int = 1
    batch_group_count: int = 1


class Kernels:
    """The portable kernels. What overrides a method asks `super()` for what it cannot do."""

    def product(self, b: Builder, x: Value, y: Value, *, wide: DType, dtype: DType) -> Value:
        """(*batch, m, k) times (*batch, k, n).

        Args:
            b: the builder to emit into.
            x: the left side.
            y: the right side, of the same element type.
            wide: the type that products are summed in.
            dtype: the type of the result; the sum is rounded once.
        """
        batch = tuple(range(x.rank - 2))
        total = b.dot_general(
            x,
            y,
            lhs_batch=batch,
            rhs_batch=batch,
            lhs_contract=(x.rank - 1,),
            rhs_contract=(y.rank - 2,),
            out_dtype=wide,
        )
        return converted(b, total, dtype)

    def convolution(
        self,
        b: Builder,
        x: Value,
        weight: Value,
        how: Convolution,
        *,
        wide: DType,
        dtype: DType,
    ) -> Value:
        """`Builder.convolution`, summed in the type `wide` and rounded once to `dtype`.

        Args:
            b: the builder to emit into.
            x: the left side.
            weight: the right side, of the same element type.
            how: what it does with them.
            wide: the type that products are summed in.
            dtype: the type of the result.
        """
        total = b.convolution(
            x,
            weight,
            window_strides=how.window_strides,
            padding=how.padding,
            lhs_dilation=how.lhs_dilation,
            rhs_dilation=how.rhs_dilation,
            feature_group_count=how.feature_group_count,
            batch_group_count=how.batch_group_count,
            dimension_numbers=how.dimension_numbers,
            out_dtype=wide,
        )
        return converted(b, total, dtype)

    def share(self, b: Builder, x: Value) -> Value:
        """A value that several loops read; the same one, or that computed only once.

        Args:
            b: the builder to emit into.
            x: the result of an elementwise operation.
        """
        return x

    def reduce(self, b: Builder, fold: Fold, x: Value, dims: Sequence[int]) -> Value:
        """Fold dimensions of `x` away, in its own element type.

        Args:
            b: the builder to emit into.
            fold: how.
            x: any tensor.
            dims: distinct dimensions.
        """
        folds: dict[Fold, Callable[[Value, Sequence[int]], Value]] = {
            "sum": b.reduce_sum,
            "prod": b.reduce_prod,
            "max": b.reduce_max,
            "min": b.reduce_min,
            "and": b.reduce_and,
            "or": b.reduce_or,
        }
        return folds[fold](x, dims)


def converted(b: Builder, x: Value, dtype: DType) -> Value:
    """`x` in an element type; the same one where it has it."""
    return x if x.dtype == dtype else b.convert(x, dtype)
