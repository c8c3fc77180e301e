"""Foreign functions whose authors say that they keep rows apart."""

from __future__ import annotations

from pjrt_bridge.torch_interop.foreign_functions import find
from pjrt_bridge.torch_interop.passes.padding.extents import Extent, MixesRows, PaddedDims
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def called(use: Use) -> list[PaddedDims]:
    """The padded dimensions of each result of a function, by what its author says."""
    count = find(str(use["function"])).row_dims
    if not count:
        raise MixesRows("its author does not say that it keeps rows apart (row_dims=)")
    found: dict[int, Extent] = {}
    for node in use.tensors:
        for dim, extent in use.dims(node).items():
            if dim >= count:
                raise MixesRows(f"its author says that it keeps {count} dimensions apart, not more")
            use.unified(found.setdefault(dim, extent), extent)
    return [
        {
            at: extent
            for at, extent in found.items()
            if at < len(use.shape(result)) and use.is_padded(use.shape(result)[at])
        }
        for result in use.results
    ]
