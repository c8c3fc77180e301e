"""Products by PyTorch's BLAS and oneDNN.

XLA has no product of its own in bfloat16, and none of complex numbers. In float32 its product is as
fast on some processors, but it packs a transposed right side, such as the weights of a linear
layer, element by element, which takes most of the time where the left side has few rows. The others
of a linear layer, which are the products of its gradients, are calls where that was measured to be
faster. Where the BLAS does without the processor's widest vectors, a convolution by oneDNN with a
kernel of one place takes half of its time, and 0.8 of that of XLA's product of many rows. PyTorch
has a call of oneDNN's product in float32, too, with a text among its arguments; libtorch 2.13 loses
the memory of that in each call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import Builder, TensorType, Value, memory_order
from pjrt_bridge.torch_interop.lowering.api import Context, Scalar
from pjrt_bridge_cpu.aten.calls import Cut, KernelCall, Load, Out
from pjrt_bridge_cpu.aten.operators import BMM, LINEAR, MM, ONEDNN_CONVOLUTION
from pjrt_bridge_cpu.aten.processor import blas_lacks_its_instructions
from pjrt_bridge_cpu.aten.rules import BFLOAT16, FLOAT32, KernelRule, UsableKernels, grain, only
from pjrt_bridge_cpu.small_products import LARGEST, is_outer
from pjrt_bridge_cpu.thin_products import ThinProducts, swapped

LEAST = 1 << 18
"""Multiplications from which on a product is worth a call."""

COMPLEX_LEAST = 1 << 13
"""The same of complex numbers, of which XLA has no product of its own."""

MEASURED_LEAST = 1 << 20
"""Multiplications from which on one in float32 is a call only where that was measured."""

ONEDNN_LEAST = 1 << 23
"""Multiplications from which on one in float32 is worth a call of oneDNN, of 25 us more."""

ONEDNN_ROWS = 128
"""Rows from which on it is: the weights are put into another order in each call."""

ROWS = 1024
"""Rows of float32 from which on the packing of transposed weights does not matter."""

LARGE = 1 << 28
"""Multiplications from which on packing a side twice is faster than waiting for a late thread."""

NARROWEST = 16
"""A product with a shorter side is bound by memory; `ThinProducts` has those of few rows."""


_BY_BLAS, _BY_ONEDNN, _OF_BATCHES = "product", "product by oneDNN", "product of batches"
_IN_ORDER, _OF_TRANSPOSED = "product of sides in order", "product of a transposed left side"
_OF_BATCHES_IN_ORDER = "product of batches in order"
_OF_TRANSPOSED_BATCHES = "product of batches of a transposed left side"

_CHANNELS_LAST = (0, 2, 3, 1)


class AtenProducts(ThinProducts):
    """Products by PyTorch.

    Attributes:
        use: emits the calls.
    """

    use: UsableKernels

    def product(self, b: Builder, x: Value, y: Value, *, accumulator: DType, dtype: DType) -> Value:
        """See `Kernels.product`."""
        thin = self.is_thin(x, y, accumulator, dtype)
        if not thin and x.rank > 2 and math.prod(x.shape[:-2]) == 1:
            # The call for batches divides them, and no product.
            left, right = (_in_batch(b, side, ()) for side in (x, y))
            product = self.product(b, left, right, accumulator=accumulator, dtype=dtype)
            return b.reshape(product, (*x.shape[:-1], y.shape[-1]))
        if x.dtype == y.dtype == dtype and not thin and not is_outer(x):
            if _may_be_onednn(x, y) and self._is_for_onednn(x, y):
                found = self.use(b, _by_onednn(b, x, y), dtype)
                if found is not None:
                    return b.reshape(
                        b.transpose(found[0], _CHANNELS_LAST), (*x.shape[:-1], y.shape[-1])
                    )
            if _pays(x, y) or self._is_faster(x, y):
                found = self.use(b, _product(b, x, y), dtype)
                if found is not None:
                    return b.reshape(found[0], (*x.shape[:-1], y.shape[-1]))
        return super().product(b, x, y, accumulator=accumulator, dtype=dtype)

    def pays(self, load: Load, dtype: DType) -> bool:
        """See `ThinProducts`."""
        return self.use.pays(load, dtype)

    def _is_faster(self, x: Value, y: Value) -> bool:
        """Whether a product in float32 was measured to be faster as a call."""
        is_large = x.rank == 2 and x.size * y.shape[-1] >= MEASURED_LEAST
        if x.dtype != FLOAT32 or not is_large or min(*x.shape, y.shape[1]) < NARROWEST:
            return False
        return self.use.pays(_load(x, y, _kind(x, y)), x.dtype, unmeasured=False)

    def _is_for_onednn(self, x: Value, y: Value) -> bool:
        """Whether oneDNN is faster than the BLAS: measured, or else by the processor's maker."""
        pair = (_load(x, y, _BY_ONEDNN), _load(x, y, _BY_BLAS))
        return self.use.prefers(*pair, x.dtype, unmeasured=blas_lacks_its_instructions())


def _is_transposed(y: Value) -> bool:
    return memory_order(y)[-1] != y.rank - 1


def _pays(x: Value, y: Value) -> bool:
    work = x.size * y.shape[-1]
    if x.dtype.is_complex:
        return work >= COMPLEX_LEAST and min(*x.shape[-2:], y.shape[-1]) > 1
    if x.dtype == BFLOAT16:
        return work >= LEAST and min(*x.shape[-2:], y.shape[-1]) >= NARROWEST
    if x.dtype == FLOAT32 and x.rank > 2:
        # XLA multiplies the matrices one after the other, each by all threads.
        sizes = (*x.shape[-2:], y.shape[-1])
        return work >= LEAST and min(sizes) > 1 and math.prod(sizes) > LARGEST
    # With one row it is a product with a vector, which the compiler vectorizes.
    return x.dtype == FLOAT32 and _is_transposed(y) and work >= LEAST and 1 < x.shape[-2] < ROWS


def _may_be_onednn(x: Value, y: Value) -> bool:
    return (
        x.dtype == FLOAT32
        and x.rank == 2
        and x.shape[0] >= ONEDNN_ROWS
        and min(y.shape) >= NARROWEST
        and _is_transposed(y)
        and x.size * y.shape[1] >= ONEDNN_LEAST
    )


def _by_onednn(b: Builder, x: Value, y: Value) -> KernelCall:
    """A product as a convolution: its rows are the places of one picture."""
    (rows, inner), columns = x.shape, y.shape[1]
    return KernelCall(
        ONEDNN_CONVOLUTION,
        {
            "self": b.transpose(b.reshape(x, (1, 1, rows, inner)), (0, 3, 1, 2)),
            "weight": b.reshape(b.transpose(y, (1, 0)), (columns, inner, 1, 1)),
            "bias": None,
            "padding": (0, 0),
            "stride": (1, 1),
            "dilation": (1, 1),
            "groups": 1,
        },
        [TensorType((1, columns, 1, rows), x.dtype)],
        returns=(0,),
        orders={"self": _CHANNELS_LAST},
        result_orders=[_CHANNELS_LAST],
        cut=_cut(x, columns, {"self": 3}, {"weight": 0}, dims=(3, 1)),
        load=_load(x, y, _BY_ONEDNN),
    )


def _product(b: Builder, x: Value, y: Value) -> KernelCall:
    batch = math.prod(x.shape[:-2])
    if x.rank == 2:
        result = TensorType((x.shape[0], y.shape[1]), x.dtype)
        cut = _cut(x, y.shape[1], {"self": 0}, {"mat2": 1})
        load = _load(x, y, _kind(x, y))
        return KernelCall(MM, {"self": x, "mat2": y, "out": Out()}, [result], cut=cut, load=load)
    x, y = (_in_batch(b, side, (batch,)) for side in (x, y))
    result = TensorType((batch, x.shape[1], y.shape[2]), x.dtype)
    cut = Cut(grain(x.size * y.shape[2], batch), {"self": 0, "mat2": 0}, (0,))
    load = _load(x, y, _kind_of_batches(x, y))
    return KernelCall(BMM, {"self": x, "mat2": y, "out": Out()}, [result], cut=cut, load=load)


def _kind(x: Value, y: Value) -> str:
    """By which sides are transposed. Only in float32 that matters, with rows below `ROWS`."""
    if x.dtype != FLOAT32 or (_is_transposed(y) and x.shape[0] < ROWS):
        return _BY_BLAS
    return _OF_TRANSPOSED if _is_transposed(x) else _IN_ORDER


def _kind_of_batches(x: Value, y: Value) -> str:
    if x.dtype != FLOAT32 or _is_transposed(y):
        return _OF_BATCHES
    return _OF_TRANSPOSED_BATCHES if _is_transposed(x) else _OF_BATCHES_IN_ORDER


def _load(x: Value, y: Value, kind: str) -> Load:
    return Load(kind, x.size * y.shape[-1])


def _cut(
    x: Value,
    columns: int,
    left: Mapping[str, int],
    right: Mapping[str, int],
    dims: tuple[int, int] = (0, 1),
) -> Cut:
    """Parts of a product of matrices: of the larger side, since each packs the whole other one.

    Args:
        x: the left side.
        columns: of the result.
        left: the dimension of the rows, by argument.
        right: that of the columns.
        dims: of the result, that of the rows and that of the columns.
    """
    rows, work = x.shape[0], x.size * columns
    pieces = 2 if work > LARGE else 1
    if columns > rows:
        return Cut(grain(work, columns), right, dims[1:], pieces)
    return Cut(grain(work, rows), left, dims[:1], pieces)


def _in_batch(b: Builder, side: Value, batch: tuple[int, ...]) -> Value:
    """Matrices in another batch of as many, still transpositions where they are that."""
    if side.shape[:-2] == batch:
        return side
    origin = side.origin
    if origin is not None and origin.permutation == swapped(side.rank):
        return b.transpose(_in_batch(b, origin.value, batch), swapped(len(batch) + 2))
    return b.reshape(side, (*batch, *side.shape[-2:]))


def add_product(
    c: Context,
    use: UsableKernels,
    bias: Value,
    x: Value,
    y: Value,
    *,
    beta: Scalar = 1,
    alpha: Scalar = 1,
) -> Value | None:
    """`aten.addmm` of a linear layer in bfloat16: the sum with the bias is rounded once."""
    plain = beta == alpha == 1 and bias.shape == (y.shape[1],)
    if not plain or not x.dtype == y.dtype == bias.dtype == BFLOAT16 or not _pays(x, y):
        return None
    return only(use(c.b, linear(x, c.b.transpose(y, (1, 0)), bias), x.dtype))


def linear(x: Value, weight: Value, bias: Value | None) -> KernelCall:
    """A linear layer: (m, k) times the transposition of (n, k), and (n) to each row."""
    return KernelCall(
        LINEAR,
        {"input": x, "weight": weight, "bias": bias, "out": Out()},
        [TensorType((x.shape[0], weight.shape[0]), x.dtype)],
        cut=_cut(x, weight.shape[0], {"input": 0}, {"weight": 0, "bias": 0}),
        load=Load("linear", x.size * weight.shape[0]),
    )


RULES: Mapping[str, KernelRule] = {"aten.addmm.default": add_product}
"""By operator of a graph."""
