"""Operators that create tensors of padded sizes (`empty`, `full`, `arange`, `eye`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import MixesRows, PaddedDims
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def created(use: Use) -> PaddedDims:
    """Tensors that are not filled."""
    return use.promised_alike(use.result)


def created_anew(use: Use) -> PaddedDims:
    """Tensors that are not filled, whose strides are named: these do not matter without gaps."""
    result = use.result
    if not compat.is_dense(result):
        raise MixesRows("its elements may lie apart in memory")
    sizes = use.shape(result)

    def emit(e: Emission) -> Any:
        return e.call("aten.empty.memory_format", list(map(e.size, sizes)), dtype=result.dtype)

    use.emit = emit
    return use.promised_alike(result)


def identity(use: Use) -> PaddedDims:
    """Ones on a diagonal."""
    return use.promised(use.result)


def filled(use: Use) -> PaddedDims:
    """Tensors full of one number."""
    name = compat.operator_name(use.node.target) or ""
    value = use["fill_value"] if "fill_value" in use.arguments else use["s"]
    if isinstance(value, fx.Node) and use.is_padded(use.number(value)):
        dims, result = use.promised_alike(use.result), use.result

        def emit(e: Emission) -> Any:
            one = e.actual(use.number(value), result.dtype)
            sizes = [e.size(size) for size in use.shape(result)]
            return e.call("aten.clone.default", e.call("aten.expand.default", one, sizes))

        use.emit = emit
        return dims
    if "zeros" in name or "ones" in name:
        value = 0 if "zeros" in name else 1
    if isinstance(value, (bool, int, float)):
        use.result_fill = value
    return use.promised_alike(use.result)


def _whole(number: Any) -> Any:
    """A whole number as an integer, or its expression.

    Raises:
        MixesRows: it may be a fraction.
    """
    if isinstance(number, float) and number.is_integer():
        return int(number)
    if isinstance(number, float) or not getattr(number, "is_integer", True):
        raise MixesRows("it counts in steps of a fraction")
    return number


def counted(use: Use) -> PaddedDims:
    """Numbers from one to another; those of padding go on."""
    found, (size,) = use.promised(use.result), use.shape(use.result)
    start, step = (use.number(use[name]) for name in ("start", "step"))
    start, step = (0 if start is None else start), (1 if step is None else step)
    start, step = _whole(start), _whole(step)
    dtype = use.result.dtype
    if found and dtype not in (torch.int32, torch.int64, torch.float32, torch.float64):
        raise MixesRows("it may count further than the element type can in the padding")
    if found or use.is_padded(start) or use.is_padded(step):

        def emit(e: Emission) -> Any:
            made = e.counted(start, size, step)
            return e.call("aten._to_copy.default", made, dtype=dtype)

        use.emit = emit
    return found
