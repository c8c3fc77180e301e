"""Kernels: how every lowering computes reductions and attention on mychip, and its composites."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.torch_interop.lowering.api import Attention, Body, Composite, Kernels, Reduction


class MychipKernels(Kernels):
    """Sums of rows as products with ones, for which the chip has a unit; attention as one call.

    The compiler takes norms as one operation, and the chip has a kernel for the composite
    `mychip.gelu`, which users' models may have.
    """

    composites = {"aten.rms_norm.default": (1,), "mychip.gelu": (1,)}

    def composite(
        self, b: Builder, composite: Composite, operands: Sequence[Value], decomposition: Body
    ) -> Value | Sequence[Value]:
        """Emit one of the composites that are listed."""
        if composite.name != "mychip.gelu":
            return super().composite(b, composite, operands, decomposition)
        (x,) = operands
        if x.dtype.name != "float32":
            return decomposition(tuple(operands))
        return b.custom_call("mychip.gelu_tanh", [x], [x.type])

    def reduce(self, b: Builder, reduction: Reduction, x: Value, dims: Sequence[int]) -> Value:
        """Emit a reduction of `x` over `dims`, which are dropped."""
        if reduction != "sum" or tuple(dims) != (x.rank - 1,) or x.dtype.name != "float32":
            return super().reduce(b, reduction, x, dims)
        ones = b.full(x.shape[-1:], 1, x.dtype)
        return b.dot_general(
            x, ones, lhs_contract=(x.rank - 1,), rhs_contract=(0,), precision="HIGHEST"
        )

    def attention(
        self,
        b: Builder,
        query: Value,
        key: Value,
        value: Value,
        mask: Value | None,
        how: Attention,
    ) -> tuple[Value, Value] | None:
        """Emit attention as a custom call; None for what the chip has no kernel for."""
        types = {x.dtype.name for x in (query, key, value)}
        if mask is not None or types != {"float32"} or query.shape[1] != key.shape[1]:
            return None
        # The kernel has no scale of its own.
        scaled = b.multiply(query, b.full(query.shape, how.scale, query.dtype))
        output, logsumexp = b.custom_call(
            "mychip.causal_attention" if how.is_causal else "mychip.attention",
            [scaled, key, value],
            [query.type, TensorType(query.shape[:3], dtypes.of("float32"))],
            # On a mesh batches and heads may be divided; the rest has to be whole.
            dimensions="bhqd,bhkd,bhkd->bhqd,bhq",
            undivided="qkd",
        )
        return output, logsumexp
