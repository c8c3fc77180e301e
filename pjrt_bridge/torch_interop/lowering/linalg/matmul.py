"""Products of matrices and vectors.

ATen semantics kept: half precision is accumulated in float32 and rounded once, after the bias is
added; integers wrap; with `beta == 0` the added tensor is not read, so its NaNs do not matter; a
sum over no products is 0.
"""

from __future__ import annotations

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context, Operand, compute_type
from pjrt_bridge.torch_interop.lowering.registry import lowering


def product(c: Context, x: Value, y: Value, dtype: DType | None = None) -> Value:
    """Matrix product over all but the last two dimensions as batches.

    The sum is rounded once to `dtype`; None leaves it in the compute type.
    """
    wide = compute_type(x.dtype)
    if x.shape[-1] == 0:
        return c.full((*x.shape[:-1], y.shape[-1]), 0, dtype or wide)
    return c.kernels.product(c.b, x, y, accumulator=wide, dtype=dtype or wide)


@lowering("aten.mm.default", "aten.bmm.default")
def matmul(c: Context, x: Value, y: Value) -> Value:
    """(..., m, k) times (..., k, n)."""
    return product(c, x, y, c.output.dtype)


@lowering("aten.mv.default")
def matrix_vector(c: Context, x: Value, vector: Value) -> Value:
    """(m, k) times (k,)."""
    column = product(c, x, c.reshape(vector, (vector.size, 1)))
    return c.reshape(c.result(column), c.output.shape)


@lowering("aten.dot.default")
def dot(c: Context, x: Value, y: Value) -> Value:
    """(k,) times (k,), a 0-d tensor."""
    single = product(c, c.reshape(x, (1, x.size)), c.reshape(y, (y.size, 1)))
    return c.reshape(c.result(single), ())


@lowering("aten.addmm.default", "aten.baddbmm.default", values=("beta", "alpha"))
def add_product(
    c: Context, bias: Value, x: Value, y: Value, *, beta: Operand = 1, alpha: Operand = 1
) -> Value:
    """`beta * bias + alpha * (x @ y)`."""
    return _plus_bias(c, bias, product(c, x, y), beta, alpha)


@lowering("aten.addmv.default", values=("beta", "alpha"))
def add_matrix_vector(
    c: Context, bias: Value, x: Value, vector: Value, *, beta: Operand = 1, alpha: Operand = 1
) -> Value:
    """`beta * bias + alpha * (x @ vector)`."""
    column = product(c, x, c.reshape(vector, (vector.size, 1)))
    return _plus_bias(c, bias, c.reshape(column, c.output.shape), beta, alpha)


def _plus_bias(c: Context, bias: Value, total: Value, beta: Operand, alpha: Operand) -> Value:
    total = _scale(c, total, alpha)
    if not isinstance(beta, Value) and beta == 0:
        return c.result(total)
    addend = c.broadcast(c.cast(bias, total.dtype), total.shape)
    if isinstance(beta, Value):
        zero = c.full(total.shape, 0, total.dtype)
        none = c.broadcast(c.b.compare(beta, c.full((), 0, beta.dtype), "EQ"), total.shape)
        addend = c.b.select(none, zero, addend)
    return c.result(c.b.add(_scale(c, addend, beta), total))


def _scale(c: Context, x: Value, factor: Operand) -> Value:
    if not isinstance(factor, Value) and factor == 1:
        return x
    return c.b.multiply(x, c.full(x.shape, factor, x.dtype))
