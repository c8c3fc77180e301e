"""Fourier transforms by PyTorch, whose library for them is vectorized.

XLA's compiler calls a library of its own, which goes through a transform one number at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, Order, TensorType, Value, memory_order
from pjrt_bridge.torch_interop.lowering.api import FourierKind, Kernels
from pjrt_bridge_cpu.aten.calls import Cut, KernelCall, Load
from pjrt_bridge_cpu.aten.operators import FFT, IRFFT, RFFT, Operator
from pjrt_bridge_cpu.aten.rules import FLOAT32, UsableKernels, grain

LEAST = 256
"""Elements from which on it is worth a call."""

_FLOAT64, _COMPLEX64, _COMPLEX128 = map(dtypes.of, ("float64", "complex64", "complex128"))
_OTHER = {
    FLOAT32: _COMPLEX64,
    _FLOAT64: _COMPLEX128,
    _COMPLEX64: FLOAT32,
    _COMPLEX128: _FLOAT64,
}
"""The complex numbers of real ones, and the other way round."""

_DIVIDED = 2
"""The number by which PyTorch divides a transform by its size."""

_KINDS: Mapping[FourierKind, tuple[Operator, Mapping[str, object]]] = {
    "FFT": (FFT, {"normalization": 0, "forward": True}),
    "IFFT": (FFT, {"normalization": _DIVIDED, "forward": False}),
    "RFFT": (RFFT, {"normalization": 0, "onesided": True}),
    "IRFFT": (IRFFT, {"normalization": _DIVIDED}),
}


class AtenTransforms(Kernels):
    """Fourier transforms.

    Attributes:
        use: emits the calls.
    """

    use: UsableKernels

    def fourier(self, b: Builder, x: Value, kind: FourierKind, lengths: Sequence[int]) -> Value:
        """See `Kernels.fourier`."""
        operator, how = _KINDS[kind]
        first = x.rank - len(lengths)
        size = math.prod((*x.shape[:first], *lengths))
        if size < LEAST:
            return super().fourier(b, x, kind, lengths)
        if kind == "IRFFT":
            how = {**how, "last_dim_size": lengths[-1]}
        kept = lengths[-1] // 2 + 1 if kind == "RFFT" else lengths[-1]
        dtype = x.dtype if operator is FFT else _OTHER[x.dtype]
        order = _order(x, first)
        work = size * max(1, round(math.log2(math.prod(lengths))))
        call = KernelCall(
            operator,
            {"self": x, "dim": range(first, x.rank), **how},
            [TensorType((*x.shape[:first], *lengths[:-1], kept), dtype)],
            returns=(0,),
            orders={"self": order},
            result_orders=[order],
            cut=_cut(x, order, first, work),
            load=Load(operator.name.removeprefix("aten::"), work),
        )
        found = self.use(b, call, x.dtype)
        return super().fourier(b, x, kind, lengths) if found is None else found[0]


def _order(x: Value, first: int) -> Order:
    """How operand and result lie: a dimension that is transformed may be before others."""
    return memory_order(x) if first else tuple(range(x.rank))


def _cut(x: Value, order: Order, first: int, work: int) -> Cut | None:
    """Along the longest dimension that is not transformed, the outermost of several."""
    free = [dim for dim in order if dim < first]
    if not free:
        return None
    dim = max(free, key=lambda dim: x.shape[dim])
    return Cut(grain(work, x.shape[dim]), {"self": dim}, (dim,))
