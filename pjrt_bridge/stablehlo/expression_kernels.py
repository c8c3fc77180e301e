"""Kernels of elementwise expressions and of reductions; a part of `kernels.Kernels`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.kernel_attributes import Expression, Reduction


class ExpressionKernels:
    """The portable kernels of expressions and reductions."""

    def expression(
        self, b: Builder, expression: Expression, operands: Sequence[Value]
    ) -> Sequence[Value] | None:
        """Emit an elementwise expression that a finished program has; here None.

        Args:
            b: the builder to emit into.
            expression: its steps.
            operands: the arrays that it reads, float32, bfloat16 or bool.

        Returns:
            The results, of their shapes and types; None: the operations stay as they are.
        """
        return None

    def reduces_last(self, reduction: Reduction, x: Value) -> bool:
        """Whether a reduction stays as it is until the program is finished; here False.

        Then it becomes a part of `reduced_expression` or `reduce_in_parts`.

        Args:
            reduction: the operation.
            x: what is reduced.
        """
        return False

    def reduced_expression(
        self,
        b: Builder,
        expression: Expression,
        reduction: Reduction,
        sizes: tuple[int, int, int],
        operands: Sequence[Value],
    ) -> Value | None:
        """Emit the reduction of an elementwise expression that a finished program has; here None.

        Args:
            b: the builder to emit into.
            expression: its steps; it has one result, float32.
            reduction: the operation.
            sizes: the elements of the expression, as (outer, length, inner).
            operands: see `expression`.

        Returns:
            (outer * inner,), float32; None: the operations stay as they are.
        """
        return None

    def reduce_in_parts(
        self, b: Builder, reduction: Reduction, x: Value, dims: Sequence[int]
    ) -> Value:
        """Emit a reduction that a finished program has, where `reduced_expression` has none.

        See `reduce`, for the arguments too.
        """
        return ExpressionKernels.reduce(self, b, reduction, x, dims)

    def reduce(self, b: Builder, reduction: Reduction, x: Value, dims: Sequence[int]) -> Value:
        """Emit a reduction of `x` over dimensions, which are dropped, in its own element type.

        Args:
            b: the builder to emit into.
            reduction: the operation.
            x: any tensor.
            dims: distinct dimensions.
        """
        reductions: dict[Reduction, Callable[[Value, Sequence[int]], Value]] = {
            "sum": b.reduce_sum,
            "prod": b.reduce_prod,
            "max": b.reduce_max,
            "min": b.reduce_min,
            "and": b.reduce_and,
            "or": b.reduce_or,
        }
        return reductions[reduction](x, dims)
