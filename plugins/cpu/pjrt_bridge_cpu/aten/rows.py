"""What goes along rows: softmax, the place of the largest, running sums, the order of elements.

XLA's compiler goes through a row one number at a time where an operation depends on its order.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder import Value
from pjrt_bridge.stablehlo.orders import Order
from pjrt_bridge.torch_interop.lowering.context import Context, axis
from pjrt_bridge_cpu.aten import operators
from pjrt_bridge_cpu.aten.calls import Call, Cut, Out
from pjrt_bridge_cpu.aten.operators import Operator
from pjrt_bridge_cpu.aten.rules import BFLOAT16, FLOAT32, Rule, Use, share

LEAST = 4_096
"""Elements from which on it is worth a call."""


def softmax(
    operator: Operator, c: Context, use: Use, x: Value, dim: int, half_to_float: bool
) -> Value | None:
    """`aten._softmax` and its logarithm."""
    if half_to_float or not _takes(x) or x.dtype not in (FLOAT32, BFLOAT16):
        return None
    arguments = {"self": x, "dim": dim, "half_to_float": False, "out": Out()}
    return _along(operator, c, use, x, dim, arguments, 8)


def running(
    operator: Operator,
    c: Context,
    use: Use,
    x: Value,
    dim: int,
    *,
    dtype: object = None,
) -> Value | None:
    """`aten.cumsum`, `cumprod` and `logcumsumexp` in the element type of the argument."""
    if not _takes(x) or c.output.dtype != x.dtype:
        return None
    return _along(operator, c, use, x, dim, {"self": x, "dim": dim, "out": Out()}, 4)


def extreme(
    operator: Operator,
    c: Context,
    use: Use,
    x: Value,
    dim: int | None = None,
    keepdim: bool = False,
) -> Value | None:
    """`aten.argmax` and `argmin` along a dimension."""
    if dim is None or not _takes(x):
        return None
    arguments = {"self": x, "dim": dim, "keepdim": keepdim, "out": Out()}
    cut = _cut(x, dim, 4, 1)
    call = Call(operator, arguments, [c.output], orders=_row_major(x), cut=cut)
    found = use(c.b, call, x.dtype)
    return None if found is None else found[0]


def _along(
    operator: Operator,
    c: Context,
    use: Use,
    x: Value,
    dim: int,
    arguments: Mapping[str, object],
    cost: int,
) -> Value | None:
    """One call with one result like `x`."""
    call = Call(operator, arguments, [c.output], orders=_row_major(x), cut=_cut(x, dim, cost, 1))
    found = use(c.b, call, x.dtype)
    return None if found is None else found[0]


def _row_major(x: Value) -> dict[str, Order]:
    # Softmax writes what lies otherwise to wrong places (PyTorch 2.13).
    return {"self": tuple(range(x.rank))}


def _takes(x: Value) -> bool:
    return x.rank > 0 and x.size >= LEAST and _is_common(x.dtype)


def _is_common(dtype: DType) -> bool:
    return dtype in (FLOAT32, BFLOAT16) or str(dtype) in ("float64", "int32", "int64")


def _cut(x: Value, dim: int, cost: int, results: int) -> Cut | None:
    """Along the outermost dimension, so that every part lies in one piece."""
    if x.rank < 2 or axis(dim, x.rank) == 0:
        return None
    return Cut(share(cost * x.size, x.shape[0]), {"self": 0}, (0,) * results)


def topk(
    c: Context,
    use: Use,
    x: Value,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Value | None, ...] | None:
    """`aten.topk`."""
    if not _takes(x) or not k:
        return None
    arguments = {
        "self": x,
        "k": k,
        "dim": dim,
        "largest": largest,
        "sorted": sorted,
        "values": Out(0),
        "indices": Out(1),
    }
    return _ordered(operators.TOPK, c, use, x, dim, arguments, 16)


def sort(
    c: Context,
    use: Use,
    x: Value,
    dim: int = -1,
    descending: bool = False,
    *,
    stable: bool | None = None,
) -> tuple[Value | None, ...] | None:
    """`aten.sort`, stable or not."""
    if not _takes(x):
        return None
    arguments = {
        "self": x,
        "stable": stable,
        "dim": dim,
        "descending": descending,
        "values": Out(0),
        "indices": Out(1),
    }
    return _ordered(operators.SORT, c, use, x, dim, arguments, 64)


def _ordered(
    operator: Operator,
    c: Context,
    use: Use,
    x: Value,
    dim: int,
    arguments: Mapping[str, object],
    cost: int,
) -> tuple[Value | None, ...] | None:
    """A call with two results, values and their places."""
    values, places = c.outputs
    if values is None or places is None:
        return None
    call = Call(
        operator,
        arguments,
        [values, places],
        returns=(None, None),
        orders=_row_major(x),
        cut=_cut(x, dim, cost, 2),
    )
    found = use(c.b, call, x.dtype)
    return None if found is None else c.promised(*found)


def _stable_sort(
    c: Context,
    use: Use,
    x: Value,
    *,
    stable: bool | None,
    dim: int = -1,
    descending: bool = False,
) -> tuple[Value | None, ...] | None:
    return sort(c, use, x, dim, descending, stable=stable)


RULES: Mapping[str, Rule] = {
    "aten._softmax.default": partial(softmax, operators.SOFTMAX),
    "aten._log_softmax.default": partial(softmax, operators.LOG_SOFTMAX),
    "aten.argmax.default": partial(extreme, operators.ARGMAX),
    "aten.argmin.default": partial(extreme, operators.ARGMIN),
    "aten.cumsum.default": partial(running, operators.CUMSUM),
    "aten.cumprod.default": partial(running, operators.CUMPROD),
    "aten.logcumsumexp.default": partial(running, operators.LOGCUMSUMEXP),
    "aten.topk.default": topk,
    "aten.sort.default": sort,
    "aten.sort.stable": _stable_sort,
}
"""By operator of a graph."""
