"""Bags of embeddings with padded indices or bags.

A bag is a range of indices that begins at its offset. Padding is in a bag of its own, behind the
others.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import MixesRows, PaddedDims
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def summed(use: Use) -> list[PaddedDims]:
    """The sum, mean or maximum of each bag, and what its gradient needs."""
    _check(use)

    def emit(e: Emission) -> list[Any]:
        made = e.repeat(use.node, offsets=_offsets(e, use), include_last_offset=False)
        results = []
        for at, promise in enumerate(use.results):
            size = e.size(use.shape(promise)[0])
            results.append(e.call("aten.slice.Tensor", e.item(made, at), 0, 0, size))
        return results

    use.emit = emit
    return [use.promised(promise) for promise in use.results]


def summed_backward(use: Use) -> PaddedDims:
    """The gradient of the table."""
    _check(use)
    if use["scale_grad_by_freq"]:
        raise MixesRows("it counts rows of the dimension")
    for name in ("grad", "bag_size", "maximum_indices"):
        use.fill(name, 0)

    def emit(e: Emission) -> Any:
        more = {name: _with_more(e, use, name) for name in ("bag_size", "maximum_indices")}
        return e.repeat(use.node, **_of_bags(e, use), **more)

    use.emit = emit
    return {}


def weights_backward(use: Use) -> PaddedDims:
    """The gradient of the weights of indices."""
    _check(use)
    use.fill("grad", 0)
    use.emit = lambda e: e.repeat(use.node, **_of_bags(e, use))
    return use.promised(use.result)


def _check(use: Use) -> None:
    """Have positions in padding be 0, and all that is known of indices lie alike."""
    if use.dims("weight"):
        raise MixesRows("it looks up rows of the dimension")
    for name in ("indices", "offsets", "per_sample_weights", "offset2bag", "grad", "bag_size"):
        for dim, extent in use.dims(name).items():
            if dim != 0:
                raise MixesRows("it combines the dimension with one of another size")
            use.needs_prefix(extent)
    use.fill("indices", 0)
    use.fill("per_sample_weights", 0)
    if use.dims("indices") and "weight" in use.arguments:
        use.needs_elements(use.shape("weight")[0])


def _offsets(e: Emission, use: Use) -> fx.Node:
    """Offsets of the bags, then for those in padding and one more the number of indices."""
    offsets, promise = e[use["offsets"]], compat.promise(use["offsets"])
    count = e.count(use.shape("indices")[0], promise.dtype)
    if use.dims("offsets"):
        offsets = e.call("aten.where.self", e.mask(use.dims("offsets"), 1), offsets, count)
    return e.call("aten.cat.default", [offsets, e.call("aten.unsqueeze.default", count, 0)])


def _of_bags(e: Emission, use: Use) -> dict[str, Any]:
    """Arguments of a gradient, in which bags behind the others have none."""
    given: dict[str, Any] = {"grad": _with_more(e, use, "grad")}
    if use["offsets"] is not None:
        given["offsets"] = _offsets(e, use)
    of, promise = e[use["offset2bag"]], compat.promise(use["offset2bag"])
    if use.dims("offset2bag"):
        bags = e.call("aten.full.default", [], e.size(use.shape("grad")[0]), dtype=promise.dtype)
        of = e.call("aten.where.self", e.mask(use.dims("offset2bag"), 1), of, bags)
        given["offset2bag"] = of
    return given


def _with_more(e: Emission, use: Use, name: str) -> fx.Node:
    """A tensor of bags with zeros for as many more as offsets may have."""
    return e.longer(e[use[name]], 0, use.rank(name), 2)
