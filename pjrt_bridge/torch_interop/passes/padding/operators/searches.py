"""Searches in rows that are in order, where the rows are padded.

ATen searches by halves (Bucketization.cpp). Where NaN stands at the end of a row, what it finds
depends on the elements that it compares, so the same elements of a padded row are compared: an
operator is given the number of elements that are not padding.
"""

from __future__ import annotations

from typing import Any

import torch

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import MixesRows, PaddedDims
from pjrt_bridge.torch_interop.passes.padding.operators.lookups import same_rows
from pjrt_bridge.torch_interop.passes.padding.rows import Use

_NAME = f"{compat.OWN_NAMESPACE}::searchsorted_within"
_OPERATOR = f"{compat.OWN_NAMESPACE}.searchsorted_within.default"


def _searched(
    rows: torch.Tensor, values: torch.Tensor, length: torch.Tensor, right: bool
) -> torch.Tensor:
    """Where values stand in the first elements of rows, where PyTorch runs the graph."""
    within = rows[..., : int(length)].contiguous()
    return torch.searchsorted(within, values.contiguous(), right=right)


def _promised(
    rows: torch.Tensor, values: torch.Tensor, length: torch.Tensor, right: bool
) -> torch.Tensor:
    return values.new_empty(values.shape, dtype=torch.int64)


torch.library.define(_NAME, "(Tensor rows, Tensor values, Tensor length, bool right) -> Tensor")
torch.library.impl(_NAME, "cpu", _searched)
torch.library.register_fake(_NAME, _promised)


def bucketed(use: Use) -> PaddedDims:
    """Positions at which numbers would stand in rows that are in order."""
    numbers = use["self"]
    rows = use["boundaries"] if "boundaries" in use.arguments else use["sorted_sequence"]
    if use["sorter"] is not None and (use.dims(rows) or use.dims(use["sorter"])):
        raise MixesRows("it looks up rows of the dimension")
    last = use.rank(rows) - 1
    sizes = use.shape(rows)
    if last in use.dims(rows):
        use.needs_prefix(use.dims(rows)[last])
        right = bool(use["right"]) or use["side"] == "right"

        def emit(e: Emission) -> Any:
            length = e.actual(sizes[last], torch.int64)
            found = e.call(_OPERATOR, e[rows], e[numbers], length, right)
            return e.call("aten._to_copy.default", found, dtype=use.result.dtype)

        use.emit = emit
    if last > 0:
        same_rows(use, use.dims(rows), use.dims(numbers), last)
    return use.dims(numbers)
