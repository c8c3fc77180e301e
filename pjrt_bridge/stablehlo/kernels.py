"""Kernels: how lowerings emit products, convolutions, reductions, softmax and attention.

Lowerings emit these, in which models spend most of their time, through `Context.kernels`. A package
that knows faster operations for its plugin derives from `Kernels` and brings an instance through
the hook `pjrt_bridge_kernels`, so that the semantics of each operator are written once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Literal

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.values import Body, ElementwiseFunction
from pjrt_bridge.stablehlo.composites import Composite
from pjrt_bridge.stablehlo.expression_kernels import ExpressionKernels
from pjrt_bridge.stablehlo.kernel_attributes import (
    Attention,
    Convolution,
    Norm,
    Pooling,
    Recurrence,
)
from pjrt_bridge.stablehlo.position_kernels import PositionKernels
from pjrt_bridge.stablehlo.scan_kernels import ScanKernels

FourierKind = Literal["FFT", "IFFT", "RFFT", "IRFFT"]
"""A Fourier transform, as `Builder.fft` defines it."""


class Kernels(ExpressionKernels, PositionKernels, ScanKernels):
    """The portable kernels.

    A subclass overrides methods, and calls `super()` for the cases that it does not cover.

    Attributes:
        composites: the names of the composites that the target computes in its own way, and for
            each the versions. All others are inlined.
        functions: by elementwise operation, `stablehlo.sine`, what takes its place in a finished
            program; None: it stays.
        can_check: `checked_positions` and `checked_divisors` fail programs.
        can_branch: a program may choose between a kernel and what it replaces, as it runs.
        inline_flops: a program of fewer operations on elements, calls aside, runs on the thread
            that calls it, and others on a thread that has to be woken; 0: all run alike.
    """

    composites: ClassVar[Mapping[str, Collection[int]]] = MappingProxyType({})
    functions: ClassVar[Mapping[str, ElementwiseFunction]] = MappingProxyType({})
    can_check: bool = False
    can_branch: bool = True
    inline_flops: int = 0

    @property
    def version(self) -> int:
        """How often it changed what they choose, as they learned what is fast; here never."""
        return 0

    def on_change(self, since: int, told: Callable[[], None]) -> None:
        """Have a function called once, on any thread, as soon as `version` is another one.

        Args:
            since: the version that the caller knows. Where it is another one already, the function
                is called at once.
            told: must return soon, and raise nothing; here, where nothing changes, never called.
        """

    def takes(self, composite: Composite) -> bool:
        """Whether the target computes a composite in its own way, by `composites`."""
        return composite.version in self.composites.get(composite.name, ())

    def composite(
        self, b: Builder, composite: Composite, operands: Sequence[Value], decomposition: Body
    ) -> Value | Sequence[Value]:
        """Emit a composite that `takes` accepts; here as it is, for the target's compiler.

        Args:
            b: the builder to emit into.
            composite: name, attributes and version.
            operands: its operands.
            decomposition: emits the same as operations that any target has; for operands of a shape
                or type that the target does not cover.

        Returns:
            The results of the composite, of the types of those of the decomposition.
        """
        return b.composite(composite, operands, decomposition)

    def product(self, b: Builder, x: Value, y: Value, *, accumulator: DType, dtype: DType) -> Value:
        """Emit the product of (*batch, m, k) and (*batch, k, n): (*batch, m, n).

        Args:
            b: the builder to emit into.
            x: the left side.
            y: the right side, of the same element type.
            accumulator: the type that products are summed in.
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
            out_dtype=accumulator,
        )
        return convert(b, total, dtype)

    def small_product(
        self, b: Builder, x: Value, y: Value, *, accumulator: DType, dtype: DType
    ) -> Value | None:
        """Emit a product as a call, however small it is; None where there is no call, as here.

        See `product`, for the arguments too.
        """
        return None

    def convolution(
        self,
        b: Builder,
        x: Value,
        weight: Value,
        how: Convolution,
        *,
        accumulator: DType,
        dtype: DType,
    ) -> Value:
        """Emit `Builder.convolution`, summed in the type `accumulator` and rounded once to `dtype`.

        Args:
            b: the builder to emit into.
            x: the left side.
            weight: the right side, of the same element type.
            how: the attributes.
            accumulator: the type that products are summed in.
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
            out_dtype=accumulator,
        )
        return convert(b, total, dtype)

    def max_pool(self, b: Builder, x: Value, how: Pooling) -> tuple[Value, Value] | None:
        """Emit the maxima of windows as one kernel; None where there is none, as here.

        Args:
            b: the builder to emit into.
            x: the data. What is around it is never a maximum; a NaN always is.
            how: the windows, each of which has a place in the data.

        Returns:
            The maxima; and for each the position of the first one in its window, or of the last
            NaN, int64: row-major in the dimensions that windows go along.
        """
        return None

    def average_pool(self, b: Builder, x: Value, divisors: Value, how: Pooling) -> Value | None:
        """Emit the averages of windows as one kernel; None where there is none, as here.

        Args:
            b: the builder to emit into.
            x: the data. What is around it counts for nothing.
            divisors: of the sums of windows, of the shape `how.sizes`.
            how: the windows.
        """
        return None

    def max_pool_gradient(
        self, b: Builder, grad: Value, positions: Value, shape: Sequence[int], how: Pooling
    ) -> Value | None:
        """Emit the sums of numbers at the positions of maxima; None where there is no kernel.

        Args:
            b: the builder to emit into.
            grad: a number for each window.
            positions: see `max_pool`, integers.
            shape: of the data, and of the result.
            how: the windows.
        """
        return None

    def recurrence(
        self,
        b: Builder,
        given: Value,
        states: tuple[Value, Value],
        weight: Value,
        bias: Value | None,
        count: Value | None,
        how: Recurrence,
        *,
        save: bool,
    ) -> tuple[Value, Value, Value] | None:
        """Emit all steps of a recurrent layer as one kernel; None where there is none, as here.

        Args:
            b: the builder to emit into.
            given: products of the inputs, (steps, batch, gates * size).
            states: the first state and the first cells, (batch, size); only an LSTM has cells.
            weight: of the state, (gates * size, size).
            bias: added to the product of the state, (gates * size,).
            count: how many steps are no padding, an integer; None for all.
            how: the layer.
            save: whether what gradients need is a result, too.

        Returns:
            The states of all steps, (steps, batch, size); the cells of an LSTM; and what gradients
            need of a GRU (reset, update, new, product for the new one) or an LSTM (input, forget,
            cell and output gate), (steps, batch, 4 * size). What there is not has size 0.
        """
        return None

    def recurrence_gradients(
        self,
        b: Builder,
        of_results: tuple[Value, Value],
        results: tuple[Value, Value, Value],
        states: tuple[Value, Value],
        weight: Value,
        count: Value | None,
        how: Recurrence,
    ) -> tuple[Value, Value, Value, Value] | None:
        """Emit the gradients of `recurrence` as one kernel; None where there is none, as here.

        Args:
            b: the builder to emit into.
            of_results: gradients of the states and of the cells of all steps.
            results: what `recurrence` gave.
            states: see there.
            weight: see there.
            count: see there.
            how: the layer.

        Returns:
            Gradients of what was given; for a GRU those of the products of the state, which for
            others are the same and have size 0; those of the first state and of the first cells.
        """
        return None

    def attention(
        self,
        b: Builder,
        query: Value,
        key: Value,
        value: Value,
        mask: Value | None,
        how: Attention,
    ) -> tuple[Value, Value] | None:
        """Emit scaled dot-product attention as one kernel; None where there is none, as here.

        Args:
            b: the builder to emit into.
            query: (batch, heads, queries, size).
            key: (batch, key heads, keys, size); consecutive query heads share a key head.
            value: as the keys.
            mask: bool, False for keys that are not seen, or what is added to the scores; its
                shape is repeated to (batch, heads, queries, keys).
            how: the numbers.

        Returns:
            The output in the shape and type of the query; and for each query the logarithm of the
            sum of its scores' exponentials, (batch, heads, queries), float32 but for float64. The
            gradients are computed from it. For a query that sees no key they are zeros, and 0 or
            -inf.
        """
        return None

    def attends(self, dtype: DType, batches: int, queries: int, keys: int, *, trains: bool) -> bool:
        """Whether `attention` takes the place of a written softmax of products; here never.

        Args:
            dtype: of queries, keys and values.
            batches: times heads.
            queries: of each; so many `keys`, too.
            keys: see there.
            trains: gradients are computed, too, for which the kernel computes scores again.
        """
        return False

    def softmax(self, b: Builder, x: Value, dim: int) -> Value | None:
        """Emit `exp(x - max(x)) / sum(exp(x - max(x)))` as one kernel; None where there is none.

        Args:
            b: the builder to emit into.
            x: floats; half precision is computed in float32 and rounded once.
            dim: along which it goes.

        Returns:
            A value of the type of `x`. A row with NaN, or of -inf alone, is NaN.
        """
        return None

    def normalize(
        self, b: Builder, x: Value, weight: Value | None, bias: Value | None, how: Norm
    ) -> tuple[Value, Value, Value] | None:
        """Emit a norm over the last dimensions as one kernel; None where there is none, as here.

        Args:
            b: the builder to emit into.
            x: floats; half precision is computed in float32 and rounded once.
            weight: of the shape of those dimensions, or of some before them, too; as `bias`. After
                its last dimension that is not 1 a number is for all elements. None: ones.
            bias: None: zeros.
            how: the numbers; the variance is the biased one.

        Returns:
            A value of the shape of `x`; mean and reciprocal standard deviation, of the shape of the
            other dimensions, float32 but for float64.
        """
        return None

    def checked_positions(
        self,
        b: Builder,
        x: Value,
        low: int | Value,
        high: int | Value,
        where: str,
        refusal: str | None = None,
    ) -> Value:
        """Emit positions as they are, in a way that fails where one is out of range.

        The program ends with `errors.OutOfRange` then. The portable kernels check nothing.

        Args:
            b: the builder to emit into.
            x: the positions, integers.
            low: the smallest that is in range; a value is int64 of rank 0.
            high: the largest.
            where: what the error begins with. It is a part of the program.
            refusal: what the error says; None for the positions and the range.
        """
        return x

    def checked_divisors(self, b: Builder, x: Value, where: str) -> Value:
        """Emit divisors as they are, in a way that fails where one is zero.

        The program ends with `errors.OutOfRange` then. The portable kernels check nothing.

        Args:
            b: the builder to emit into.
            x: the divisors, integers or bool.
            where: what the error begins with. It is a part of the program.
        """
        return x

    def materialize(self, b: Builder, x: Value, *, by_rows: bool = False) -> Value:
        """Keep a compiler from computing a value anew in each of the loops that read it.

        Args:
            b: the builder to emit into.
            x: the result of an elementwise operation that several loops read.
            by_rows: the value is to be row-major in memory, because these loops go along its last
                dimension; else it keeps the order of `x`.

        Returns:
            A value of the same elements, here `x` itself.
        """
        return x

    def fourier(self, b: Builder, x: Value, kind: FourierKind, lengths: Sequence[int]) -> Value:
        """Emit a Fourier transform over the last `len(lengths)` dimensions, as `Builder.fft` does.

        Args:
            b: the builder to emit into.
            x: complex, for RFFT real.
            kind: of transform; inverses divide by the number of elements.
            lengths: sizes of the transformed (for IRFFT resulting) dimensions, at most three.
        """
        return b.fft(x, kind, lengths)

    def overwrite(self, b: Builder, x: Value, part: Value, starts: Sequence[int | Value]) -> Value:
        """Emit `x` with `part` in place of as many elements, from a position on.

        Args:
            b: the builder to emit into.
            x: any tensor.
            part: of the same element type and rank, of sizes that fit.
            starts: the position of its first element, per dimension; those that are computed are
                integers of one type, and moved to where the part fits.
        """
        places = [at if isinstance(at, Value) else b.full((), at, "int64") for at in starts]
        return b.dynamic_update_slice(x, part, places)


def convert(b: Builder, x: Value, dtype: DType) -> Value:
    """`x` in an element type, as StableHLO converts it; `x` itself where it has that type."""
    return x if x.dtype == dtype else b.convert(x, dtype)
