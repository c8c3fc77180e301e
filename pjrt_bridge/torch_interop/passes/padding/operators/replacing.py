"""`slice_scatter` and `select_scatter` along padded dimensions."""

from __future__ import annotations

from typing import Any

import torch

from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import PaddedDims
from pjrt_bridge.torch_interop.passes.padding.operators.moves import dropped, dropped_one
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def sliced_in(use: Use) -> PaddedDims:
    """Some rows of a dimension replaced."""
    found, source, shape = use.dims("self"), use.dims("src"), use.shape("self")
    (dim,) = use.named("dim", len(shape))
    use.same(dropped_one(found, dim), dropped_one(source, dim))
    start, end = use.number(use["start"]), use.number(use["end"])
    if dim not in found and dim not in source and not any(map(use.is_padded, (start, end))):
        return found
    for dims in (found, source):
        if dim in dims:
            use.needs_prefix(dims[dim])
    start, step = use.start(use["start"], dim), use.number(use["step"] or 1)
    count = use.shape("src")[dim]
    use.needs_elements(count)

    def emit(e: Emission) -> Any:
        at = e.call("aten.arange.default", e.size(shape[dim]), dtype=torch.int64)
        at = e.call("aten.sub.Tensor", at, e.actual(start))
        replaced = e.call("aten.ge.Scalar", at, 0)
        if step != 1:
            distance = e.count(step, torch.int64)
            between = e.call("aten.remainder.Tensor", at, distance)
            at = e.call("aten.div.Tensor_mode", at, distance, rounding_mode="floor")
            is_one = e.call("aten.eq.Scalar", between, 0)
            replaced = e.call("aten.logical_and.default", replaced, is_one)
        moved = e.call("aten.index_select.default", e[use["src"]], dim, e.within(at, count))
        is_within = e.call("aten.lt.Tensor", at, e.count(count, torch.int64))
        replaced = e.call("aten.logical_and.default", replaced, is_within)
        replaced = e.along(replaced, dim, len(shape))
        return e.call("aten.where.self", replaced, moved, e[use["self"]])

    use.emit = emit
    return found


def selected_in(use: Use) -> PaddedDims:
    """One row replaced."""
    found, source, shape = use.dims("self"), use.dims("src"), use.shape("self")
    (dim,) = use.named("dim", len(shape))
    use.same(dropped(found, [dim]), source)
    index = use.number(use["index"])
    if dim not in found and not use.is_padded(index):
        return found
    if dim in found:
        use.needs_prefix(found[dim])

    def emit(e: Emission) -> Any:
        at = e.call("aten.arange.default", e.size(shape[dim]), dtype=torch.int64)
        size = e.count(shape[dim], torch.int64)
        # It may count from the end, which a call decides.
        row = e.call("aten.remainder.Tensor", e.count(index, torch.int64), size)
        replaced = e.call("aten.eq.Tensor", at, row)
        source = e.call("aten.unsqueeze.default", e[use["src"]], dim)
        replaced = e.along(replaced, dim, len(shape))
        return e.call("aten.where.self", replaced, source, e[use["self"]])

    use.emit = emit
    return found
