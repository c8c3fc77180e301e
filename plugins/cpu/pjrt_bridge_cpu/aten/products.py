"""Products by PyTorch's BLAS and oneDNN.

XLA has no product of its own in bfloat16. In float32 its product is as fast, but it packs a
transposed right side, such as the weights of a linear layer, element by element, which takes most
of the time where the left side has few rows. Where the BLAS does without the processor's widest
vectors, oneDNN takes 0.45 of its time, and 0.8 of that of XLA's product of many rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import Builder, TensorType, Value, memory_order
from pjrt_bridge.torch_interop.lowering.api import Context, Kernels, Scalar
from pjrt_bridge_cpu.aten.calls import Cut, KernelCall, Out
from pjrt_bridge_cpu.aten.operators import BMM, LINEAR, MM, ONEDNN_LINEAR
from pjrt_bridge_cpu.aten.processor import blas_lacks_its_instructions
from pjrt_bridge_cpu.aten.rules import BFLOAT16, FLOAT32, KernelRule, UsableKernels, grain, only

LEAST = 1 << 18
"""Multiplications from which on a product is worth a call."""

ONEDNN_LEAST = 1 << 20
"""The same for a call of oneDNN in float32, which takes 10 us more than one of BLAS."""

ROWS = 1024
"""Rows of float32 from which on the packing of transposed weights does not matter."""

LARGE = 1 << 28
"""Multiplications from which on packing a side twice is faster than waiting for a late thread."""

NARROWEST = 16
"""A product with a shorter side is bound by memory; XLA is as fast there."""


class AtenProducts(Kernels):
    """Products by PyTorch.

    Attributes:
        use: emits the calls.
    """

    use: UsableKernels

    def product(self, b: Builder, x: Value, y: Value, *, accumulator: DType, dtype: DType) -> Value:
        """See `Kernels.product`."""
        if x.dtype == y.dtype == dtype:
            for call in _calls(b, x, y):
                found = self.use(b, call, dtype)
                if found is not None:
                    return b.reshape(found[0], (*x.shape[:-1], y.shape[-1]))
        return super().product(b, x, y, accumulator=accumulator, dtype=dtype)


def _calls(b: Builder, x: Value, y: Value) -> Iterator[KernelCall]:
    """Calls that are worth it, the fastest first; of which one may not be usable here."""
    if _is_for_onednn(x, y):
        yield _by_onednn(b, x, y)
    if _pays(x, y):
        yield _product(b, x, y)


def _is_transposed(y: Value) -> bool:
    return memory_order(y)[-1] != y.rank - 1


def _pays(x: Value, y: Value) -> bool:
    work = x.size * y.shape[-1]
    if x.dtype == BFLOAT16:
        return work >= LEAST and min(*x.shape[-2:], y.shape[-1]) >= NARROWEST
    # With one row it is a product with a vector, which the compiler vectorizes.
    return x.dtype == FLOAT32 and _is_transposed(y) and work >= LEAST and 1 < x.shape[-2] < ROWS


def _is_for_onednn(x: Value, y: Value) -> bool:
    return (
        blas_lacks_its_instructions()
        and x.dtype == FLOAT32
        and x.rank == 2
        and x.shape[0] > 1
        and _is_transposed(y)
        and x.size * y.shape[1] >= ONEDNN_LEAST
    )


def _by_onednn(b: Builder, x: Value, y: Value) -> KernelCall:
    columns = y.shape[1]
    return KernelCall(
        ONEDNN_LINEAR,
        {
            "X": x,
            "W": b.transpose(y, (1, 0)),
            "B": None,
            "attr": "none",
            "scalars": (),
            "algorithm": None,
        },
        [TensorType((x.shape[0], columns), x.dtype)],
        returns=(0,),
        cut=_cut(x, columns, {"X": 0}, {"W": 0}),
    )


def _product(b: Builder, x: Value, y: Value) -> KernelCall:
    batch = math.prod(x.shape[:-2])
    if x.rank == 2:
        result = TensorType((x.shape[0], y.shape[1]), x.dtype)
        cut = _cut(x, y.shape[1], {"self": 0}, {"mat2": 1})
        return KernelCall(MM, {"self": x, "mat2": y, "out": Out()}, [result], cut=cut)
    x, y = (_in_one_batch(b, side) for side in (x, y))
    result = TensorType((batch, x.shape[1], y.shape[2]), x.dtype)
    cut = Cut(grain(x.size * y.shape[2], batch), {"self": 0, "mat2": 0}, (0,))
    return KernelCall(BMM, {"self": x, "mat2": y, "out": Out()}, [result], cut=cut)


def _cut(x: Value, columns: int, left: Mapping[str, int], right: Mapping[str, int]) -> Cut:
    """Parts of a product of matrices: of the larger side, since each packs the whole other one."""
    rows, work = x.shape[0], x.size * columns
    pieces = 2 if work > LARGE else 1
    if columns > rows:
        return Cut(grain(work, columns), right, (1,), pieces)
    return Cut(grain(work, rows), left, (0,), pieces)


def _in_one_batch(b: Builder, side: Value) -> Value:
    """(*batch, m, k) as (batch, m, k), still a transposition where it is one."""
    if side.rank == 3:
        return side
    shape = (math.prod(side.shape[:-2]), *side.shape[-2:])
    origin, rank = side.origin, side.rank
    swap = (*range(rank - 2), rank - 1, rank - 2)
    if origin is not None and origin.permutation == swap:
        inner = b.reshape(origin.value, (shape[0], shape[2], shape[1]))
        return b.transpose(inner, (0, 2, 1))
    return b.reshape(side, shape)


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
    )


RULES: Mapping[str, KernelRule] = {"aten.addmm.default": add_product}
"""By operator of a graph."""
