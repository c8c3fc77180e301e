"""Softmax and its logarithm, and their derivatives.

ATen semantics kept: half precision is computed in float32 and rounded once.
"""

from __future__ import annotations

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context, normalize_dim
from pjrt_bridge.torch_interop.lowering.registry import lowering


@lowering("aten._softmax.default")
def softmax(c: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    """`exp(x - max) / sum(exp(x - max))` along `dim`."""
    if x.rank and x.dtype == c.output.dtype:
        found = c.kernels.softmax(c.b, x, normalize_dim(dim, x.rank))
        if found is not None:
            return c.result(found)
    powers, total = _exponentials(c, x, dim)
    return c.result(c.b.divide(c.b.exp(powers), total))


@lowering("aten._log_softmax.default")
def log_softmax(c: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    """`x - max - log(sum(exp(x - max)))` along `dim`."""
    powers, total = _exponentials(c, x, dim)
    return c.result(c.b.subtract(powers, c.b.log(total)))


def _exponentials(c: Context, x: Value, dim: int) -> tuple[Value, Value]:
    """`x - max` and the repeated sum of its exponentials."""
    b = c.b
    wide = c.widen(x)
    dims = (normalize_dim(dim, x.rank),) if x.rank else ()
    powers = b.subtract(wide, c.spread(c.reduce("max", wide, dims), x.shape, dims))
    return powers, c.spread(c.reduce("sum", b.exp(powers), dims), x.shape, dims)


@lowering("aten._softmax_backward_data.default")
def softmax_backward(
    c: Context, grad: Value, output: Value, dim: int, input_dtype: object
) -> Value:
    """`output * (grad - sum(grad * output))`."""
    b = c.b
    incoming, y = c.widen(grad), c.widen(output)
    total = _sum_along(c, b.multiply(incoming, y), dim)
    return c.result(b.multiply(y, b.subtract(incoming, total)))


@lowering("aten._log_softmax_backward_data.default")
def log_softmax_backward(
    c: Context, grad: Value, output: Value, dim: int, input_dtype: object
) -> Value:
    """`grad - exp(output) * sum(grad)`."""
    b = c.b
    incoming, y = c.widen(grad), c.widen(output)
    total = _sum_along(c, incoming, dim)
    return c.result(b.subtract(incoming, b.multiply(b.exp(y), total)))


def _sum_along(c: Context, x: Value, dim: int) -> Value:
    dims = (normalize_dim(dim, x.rank),) if x.rank else ()
    return c.spread(c.reduce("sum", x, dims), x.shape, dims)
