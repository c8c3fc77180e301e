"""Operators along rows: softmax, running sums, the first in order.

XLA's compiler goes through a row one element at a time where an operation depends on its order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.kernel_attributes import Scan
from pjrt_bridge.torch_interop.lowering.api import Context, Kernels, normalize_dim
from pjrt_bridge_cpu.aten import operators
from pjrt_bridge_cpu.aten.calls import Cut, KernelCall, Out
from pjrt_bridge_cpu.aten.operators import Operator
from pjrt_bridge_cpu.aten.rules import (
    BFLOAT16,
    FLOAT32,
    PIECES,
    KernelRule,
    UsableKernels,
    grain,
    load_of,
    only,
)

LEAST = 4_096
"""Elements from which on it is worth a call."""

LEAST_SELECTED = 2
"""The same of `topk`: of equal elements PyTorch and XLA select different ones."""


class AtenSoftmax(Kernels):
    """Softmax by PyTorch.

    Attributes:
        use: emits the calls.
    """

    use: UsableKernels

    def softmax(self, b: Builder, x: Value, dim: int) -> Value | None:
        """See `Kernels.softmax`."""
        if x.dtype not in (FLOAT32, BFLOAT16):
            return None
        how: Mapping[str, object] = {"half_to_float": False}
        return only(_call(operators.SOFTMAX, b, self.use, x, dim, [x.type], ("out",), 8, how))


def log_softmax(
    c: Context, use: UsableKernels, x: Value, dim: int, half_to_float: bool
) -> Value | None:
    """`aten._log_softmax`."""
    if half_to_float or x.dtype not in (FLOAT32, BFLOAT16):
        return None
    return only(
        _along(operators.LOG_SOFTMAX, c, use, x, dim, ("out",), 8, {"half_to_float": False})
    )


def running(
    operator: Operator,
    how: Scan,
    c: Context,
    use: UsableKernels,
    x: Value,
    dim: int,
    *,
    dtype: object = None,
) -> Value | None:
    """`aten.cumsum`, `cumprod` and `logcumsumexp` in the element type of the argument.

    PyTorch's kernels go down columns one element at a time, so they are for what `Kernels.scan` has
    no other one for.
    """
    if c.output.dtype != x.dtype or not x.rank:
        return None
    found = c.kernels.scan(c.b, how, x, normalize_dim(dim, x.rank))
    return only(_along(operator, c, use, x, dim, ("out",), 4, {})) if found is None else found


def topk(
    c: Context,
    use: UsableKernels,
    x: Value,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Value | None, ...] | None:
    """`aten.topk`."""
    if not k:
        return None
    how = {"k": k, "largest": largest, "sorted": sorted}
    outs = ("values", "indices")
    return _along(operators.TOPK, c, use, x, dim, outs, 16, how, least=LEAST_SELECTED)


def _along(
    operator: Operator,
    c: Context,
    use: UsableKernels,
    x: Value,
    dim: int,
    outs: Sequence[str],
    cost: int,
    arguments: Mapping[str, object],
    *,
    least: int | None = None,
) -> tuple[Value | None, ...] | None:
    """A call of an operator along a dimension, with the results that a node promises."""
    promised = [output for output in c.outputs if output is not None]
    if len(promised) != len(outs):
        return None
    at = normalize_dim(dim, x.rank)
    return _call(operator, c.b, use, x, at, promised, outs, cost, arguments, least=least)


def _call(
    operator: Operator,
    b: Builder,
    use: UsableKernels,
    x: Value,
    dim: int,
    promised: Sequence[TensorType],
    outs: Sequence[str],
    cost: int,
    arguments: Mapping[str, object],
    *,
    least: int | None = None,
) -> tuple[Value, ...] | None:
    """A call of an operator along a dimension, cut along the outermost one.

    Args:
        operator: which.
        b: to emit into.
        use: writes the call.
        x: its operand.
        dim: along which it goes.
        promised: types of the results.
        outs: names of the arguments that it writes its results to.
        cost: of an element, in additions.
        arguments: further ones.
        least: elements from which on it is worth a call; None: `LEAST`.
    """
    if not _takes(x, LEAST if least is None else least):
        return None
    at, types = dim, list(promised)
    if x.rank > 2 and at == x.rank - 1:
        # All rows in one dimension: the outermost one alone may be too short to be cut.
        rows = math.prod(x.shape[:-1])
        types = [TensorType((rows, *item.shape[at:]), item.dtype) for item in promised]
        x, at = b.reshape(x, (rows, x.shape[-1])), 1
    cut = None
    # Every part has to be contiguous.
    if x.rank > 1 and at > 0:
        cut = Cut(grain(cost * x.size, x.shape[0]), {"self": 0}, (0,) * len(outs), PIECES)
    places = {name: Out(index) for index, name in enumerate(outs)}
    call = KernelCall(
        operator,
        {"self": x, "dim": at, **arguments, **places},
        types,
        returns=(None,) * len(outs),
        # Softmax writes operands of other orders to wrong places (PyTorch 2.13).
        orders={"self": tuple(range(x.rank))},
        cut=cut,
        load=load_of(operator, x),
    )
    found = use(b, call, x.dtype)
    if found is None:
        return None
    pairs = zip(found, promised, strict=True)
    return tuple(
        value if value.shape == item.shape else b.reshape(value, item.shape)
        for value, item in pairs
    )


def _takes(x: Value, least: int) -> bool:
    common = x.dtype in (FLOAT32, BFLOAT16) or str(x.dtype) in ("float64", "int32", "int64")
    return x.rank > 0 and x.size >= least and common


RULES: Mapping[str, KernelRule] = {
    "aten._log_softmax.default": log_softmax,
    "aten.cumsum.default": partial(running, operators.CUMSUM, "sum"),
    "aten.cumprod.default": partial(running, operators.CUMPROD, "prod"),
    "aten.logcumsumexp.default": partial(running, operators.LOGCUMSUMEXP, "logsumexp"),
    "aten.topk.default": topk,
}
"""By operator of a graph."""
