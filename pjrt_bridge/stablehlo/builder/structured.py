"""Operations with bodies: reductions, windows, sort and control flow (StableHLO spec, "Ops").

A body is a Python callable that receives Values and calls the same builder's methods; what it
emits becomes the operation's region. Bodies of reductions see scalars: all accumulated values
first, then all elements. Bodies may use values from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np

from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo.builder.elementwise import ElementwiseOps
from pjrt_bridge.stablehlo.builder.values import (
    Body,
    PairBody,
    Value,
    check_dims,
    check_length,
    paired,
    scalars,
)
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.wrong_arguments import checked_methods

Padding = Sequence[tuple[int, int]]


@checked_methods
class StructuredOps(ElementwiseOps):
    """Reductions, windows, sort, loops and branches."""

    # -- reductions -------------------------------------------------------------------------

    def reduce(
        self, xs: Sequence[Value], inits: Sequence[Value], dims: Sequence[int], body: PairBody
    ) -> tuple[Value, ...]:
        """Fold dimensions away, several tensors at a time.

        Args:
            xs: tensors of one shape.
            inits: one scalar per tensor, an identity of the body.
            dims: dimensions to fold.
            body: from (accumulated scalars, element scalars) to accumulated scalars; the order of
                application is the plugin's choice.
        """
        op = "stablehlo.reduce"
        if not xs:
            raise ProgramError(f"{op}: needs at least one operand")
        check_length(op, "inits", inits, len(xs))
        folded = check_dims(op, "dims", dims, xs[0].rank)
        shape = tuple(size for dim, size in enumerate(xs[0].shape) if dim not in folded)
        results = [TensorType(shape, init.dtype) for init in inits]
        attributes = {"dimensions": self._dims(dims)}
        region = paired(scalars(inits), body)
        return self._emit_with(op, (*xs, *inits), [region], attributes, results)

    def reduce_sum(self, x: Value, dims: Sequence[int]) -> Value:
        """Sum over dimensions (logical or of booleans)."""
        return self._reduce_with(x, self.full((), 0, x.dtype), dims, self.add)

    def reduce_prod(self, x: Value, dims: Sequence[int]) -> Value:
        """Product over dimensions (logical and of booleans)."""
        return self._reduce_with(x, self.full((), 1, x.dtype), dims, self.multiply)

    def reduce_max(self, x: Value, dims: Sequence[int]) -> Value:
        """Maximum over dimensions; NaN wins; of nothing -inf or the lowest value."""
        return self._reduce_with(x, self._limit(x.dtype, lowest=True), dims, self.maximum)

    def reduce_min(self, x: Value, dims: Sequence[int]) -> Value:
        """Minimum over dimensions; NaN wins; of nothing inf or the highest value."""
        return self._reduce_with(x, self._limit(x.dtype, lowest=False), dims, self.minimum)

    def reduce_and(self, x: Value, dims: Sequence[int]) -> Value:
        """Logical or bitwise and over dimensions."""
        ones = True if x.dtype.is_bool else _integer_limits(x.dtype, "reduce_and")[2]
        return self._reduce_with(x, self.full((), ones, x.dtype), dims, self.and_)

    def reduce_or(self, x: Value, dims: Sequence[int]) -> Value:
        """Logical or bitwise or over dimensions."""
        return self._reduce_with(x, self.full((), 0, x.dtype), dims, self.or_)

    def _reduce_with(
        self, x: Value, init: Value, dims: Sequence[int], combine: Callable[[Value, Value], Value]
    ) -> Value:
        return self.reduce((x,), (init,), dims, lambda old, new: combine(old[0], new[0]))[0]

    def _limit(self, dtype: DType, *, lowest: bool) -> Value:
        """The scalar that no value of the type is below (or above)."""
        if dtype.is_bool:
            return self.full((), not lowest, dtype)
        if dtype.is_integer:
            low, high, _ = _integer_limits(dtype, "reduction")
            return self.full((), low if lowest else high, dtype)
        if dtype.is_complex:
            raise ProgramError(f"reduction: {dtype} has no order")
        limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
        infinity = np.asarray(-np.inf if lowest else np.inf).astype(dtype.numpy)
        finite = limits.min if lowest else limits.max
        return self.constant(infinity if np.isinf(infinity) else finite, dtype)

    # -- windows ----------------------------------------------------------------------------

    def reduce_window(
        self,
        xs: Sequence[Value],
        inits: Sequence[Value],
        body: PairBody,
        *,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        base_dilations: Sequence[int] | None = None,
        window_dilations: Sequence[int] | None = None,
        padding: Padding,
    ) -> tuple[Value, ...]:
        """Fold sliding windows, several tensors at a time; everything is per dimension.

        Args:
            xs: tensors of one shape.
            inits: one scalar per tensor: start of each fold, and the padding.
            body: from (accumulated scalars, element scalars) to accumulated scalars.
            window_dimensions: window sizes.
            window_strides: steps between windows.
            base_dilations: 1 + elements put between neighbours of x (default 1).
            window_dilations: steps inside a window (default 1).
            padding: (low, high) elements added at the edges.
        """
        op = "stablehlo.reduce_window"
        if not xs:
            raise ProgramError(f"{op}: needs at least one operand")
        check_length(op, "inits", inits, len(xs))
        rank = xs[0].rank
        base = [1] * rank if base_dilations is None else base_dilations
        inner = [1] * rank if window_dilations is None else window_dilations
        for name, items in (
            ("window_dimensions", window_dimensions),
            ("window_strides", window_strides),
            ("base_dilations", base),
            ("window_dilations", inner),
            ("padding", padding),
        ):
            check_length(op, name, items, rank)
        shape = tuple(
            window_count(op, *sizes)
            for sizes in zip(
                xs[0].shape, window_dimensions, window_strides, base, inner, padding, strict=True
            )
        )
        attributes = {
            "window_dimensions": self._dims(window_dimensions),
            "window_strides": self._dims(window_strides),
            "base_dilations": self._dims(base),
            "window_dilations": self._dims(inner),
            "padding": self._padding(padding),
        }
        results = [TensorType(shape, init.dtype) for init in inits]
        region = paired(scalars(inits), body)
        return self._emit_with(op, (*xs, *inits), [region], attributes, results)

    def select_and_scatter(
        self,
        operand: Value,
        source: Value,
        init: Value,
        select: Callable[[Value, Value], Value],
        scatter: Callable[[Value, Value], Value],
        *,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Padding,
    ) -> Value:
        """Scatter each source element to the element that its window of the operand selects.

        Args:
            operand: tensor whose windows choose.
            source: one value per window.
            init: scalar, start of each scattered sum.
            select: whether the first of two scalars is kept, as bool.
            scatter: combines the scalar so far with a source scalar.
            window_dimensions: window sizes per dimension.
            window_strides: steps between windows per dimension.
            padding: (low, high) per dimension.
        """
        op = "stablehlo.select_and_scatter"
        check_length(op, "padding", padding, operand.rank)
        attributes = {
            "window_dimensions": self._dims(window_dimensions),
            "window_strides": self._dims(window_strides),
            "padding": self._padding(padding),
        }
        regions = (
            paired(scalars([operand]), lambda a, b: select(a[0], b[0])),
            paired(scalars([source]), lambda a, b: scatter(a[0], b[0])),
        )
        result = TensorType(operand.shape, init.dtype)
        return self._emit_with(op, (operand, source, init), regions, attributes, [result])[0]

    # -- sort -------------------------------------------------------------------------------

    def sort(
        self,
        xs: Sequence[Value],
        dim: int,
        comparator: Callable[[tuple[Value, ...], tuple[Value, ...]], Value],
        *,
        stable: bool = True,
    ) -> tuple[Value, ...]:
        """Sort tensors of one shape together along a dimension.

        Args:
            xs: tensors of one shape.
            dim: dimension to sort along.
            comparator: from (left scalars, right scalars), one per tensor, to bool: whether left
                comes first.
            stable: keep the order of equal elements.
        """
        op = "stablehlo.sort"

        def body(pairs: tuple[Value, ...]) -> Value:
            return comparator(pairs[0::2], pairs[1::2])

        pairs = [scalar for scalar in scalars(xs) for _ in range(2)]
        attributes = {"dimension": self._int(dim), "is_stable": self._bool(stable)}
        return self._emit_with(op, xs, [(pairs, body)], attributes, [x.type for x in xs])

    # -- control flow -----------------------------------------------------------------------

    def while_(
        self,
        inits: Sequence[Value],
        cond: Callable[[tuple[Value, ...]], Value],
        body: Body,
    ) -> tuple[Value, ...]:
        """Repeat `body` while `cond` holds.

        Args:
            inits: loop-carried values before the first turn.
            cond: from the tuple of carried values to a bool scalar.
            body: from the tuple of carried values to the next ones, of the same types.
        """
        types = [init.type for init in inits]
        regions = ((types, cond), (types, body))
        return self._emit_with("stablehlo.while", inits, regions, None, types)

    def if_(
        self,
        pred: Value,
        then: Callable[[], Value | Sequence[Value]],
        else_: Callable[[], Value | Sequence[Value]],
    ) -> tuple[Value, ...]:
        """The values of `then` where the bool scalar holds, else those of `else_`."""
        return self._branch("stablehlo.if", pred, (then, else_))

    def case(
        self, index: Value, branches: Sequence[Callable[[], Value | Sequence[Value]]]
    ) -> tuple[Value, ...]:
        """The values of the branch with this number (int32 scalar); of the last one if outside."""
        if not branches:
            raise ProgramError("stablehlo.case: needs at least one branch")
        return self._branch("stablehlo.case", index, branches)

    def optimization_barrier(self, xs: Sequence[Value]) -> tuple[Value, ...]:
        """The values themselves; the compiler merges nothing before with anything behind.

        StableHLO spec, "optimization_barrier".

        Args:
            xs: at least one value.
        """
        op = "stablehlo.optimization_barrier"
        if not xs:
            raise ProgramError(f"{op}: needs at least one operand")
        return self._emit(op, xs)

    def stored(self, x: Value) -> Value:
        """The value itself, as the result of a function that XLA's compilers do not inline.

        So no loop that reads it computes it again: it is written to memory once. An optimization
        barrier does not promise that; XLA's compiler for CPU drops barriers before it fuses loops.
        The attribute is XLA's (xla/service/call_inliner.cc); other compilers may inline the call.
        """
        ir = self._ir
        name = self._stores.get(x.type)
        if name is None:
            name = self._stores[x.type] = f"stored_{len(self._stores)}"
            top = ir.InsertionPoint.at_block_begin(self._module.body)
            _, block = self._function([x.type], name, top, results=[x.type], visibility="private")
            ip = ir.InsertionPoint(block)
            handles = list(block.arguments)
            ir.Operation.create("func.return", operands=handles, loc=self._unknown, ip=ip)
        kept = ir.DictAttr.get({"inlineable": self._str("false")}, self._context)
        attributes = {
            "callee": ir.FlatSymbolRefAttr.get(name, self._context),
            "mhlo.frontend_attributes": kept,
        }
        return self._emit_one("func.call", (x,), attributes, x.type)

    def _branch(
        self,
        op: str,
        selector: Value,
        branches: Sequence[Callable[[], Value | Sequence[Value]]],
    ) -> tuple[Value, ...]:
        return self._emit_with(op, (selector,), [((), _call(branch)) for branch in branches])


def _call(branch: Callable[[], Value | Sequence[Value]]) -> Body:
    return lambda _: branch()


def _integer_limits(dtype: DType, op: str) -> tuple[int, int, int]:
    """Lowest value, highest value and the value with all bits set."""
    if dtype.is_unsigned_integer:
        highest = (1 << dtype.bits) - 1
        return 0, highest, highest
    if dtype.is_signed_integer:
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1, -1
    raise ProgramError(f"{op}: expected an integer or boolean operand, found {dtype}")


def window_count(
    op: str, size: int, window: int, stride: int, base: int, inner: int, padding: tuple[int, int]
) -> int:
    """Number of windows along one dimension (StableHLO spec, "reduce_window" and "convolution").

    Args:
        op: operation, for the error message.
        size: elements.
        window: window size.
        stride: step between windows.
        base: dilation of the operand.
        inner: dilation of the window.
        padding: elements added before and after.

    Raises:
        ProgramError: a window, stride or dilation below 1, or more negative padding than elements.
    """
    if min(window, stride, base, inner) < 1:
        raise ProgramError(
            f"{op}: window sizes, strides and dilations must be >= 1, "
            f"found {window}, {stride}, {base}, {inner}"
        )
    padded = (0 if size == 0 else (size - 1) * base + 1) + padding[0] + padding[1]
    reach = (window - 1) * inner + 1
    return 0 if padded < reach else (padded - reach) // stride + 1
