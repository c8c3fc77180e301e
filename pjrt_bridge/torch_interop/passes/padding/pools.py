"""Pooling of images along padded dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from torch import fx

from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import Dims, MixesRows, Size, extent_of
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def largest(use: Use) -> list[Dims]:
    """The largest of each window, and its position in the image."""
    found, width = _pooled(use, "self", use.results[0]), use.shape("self")[-1]
    inside = _images(use, "self")
    use.fill("self", -inf, inside)
    if use.rank("self") - 1 in inside:

        def emit(e: Emission) -> list[Any]:
            made = e.copy(use.node)
            values, indices = (e.item(made, at) for at in (0, 1))
            return [values, _in_width(e, indices, e.size(width), e.actual(width))]

        use.emit = emit
    return [found, found]


def largest_backward(use: Use) -> Dims:
    """Its gradient."""
    found, width = use.dims("self"), use.shape("self")[-1]
    inside = _images(use, "self")
    _pooled(use, "self", use["grad_output"])
    use.fill("grad_output", 0, inside)
    use.fill("indices", 0, inside)
    _move_positions(use, width, inside)
    return found


def positions_backward(use: Use) -> Dims:
    """The gradient of the largest elements of windows that positions tell."""
    found, width = use.dims("self"), use.shape("self")[-1]
    inside = _images(use, "self")
    pooled = use.dims("grad_output")
    if pooled != use.dims("indices"):
        raise MixesRows("it combines the dimension with one of another size")
    use.fill("grad_output", 0)
    use.fill("indices", 0)
    _move_positions(use, width, inside)
    return found


def _move_positions(use: Use, width: Size, inside: Iterable[int]) -> None:
    """Positions in an image count its rows by the width, which grows with the padding."""
    if use.rank("self") - 1 in inside:

        def emit(e: Emission) -> Any:
            indices = _in_width(e, e[use["indices"]], e.actual(width), e.size(width))
            return e.repeat(use.node, indices=indices)

        use.emit = emit


def mean(use: Use) -> Dims:
    """The mean of each window."""
    _divided_alike(use)
    use.fill("self", 0, _images(use, "self"))
    return _pooled(use, "self", use.result)


def mean_backward(use: Use) -> Dims:
    """Its gradient."""
    _divided_alike(use)
    _pooled(use, "self", use["grad_output"])
    use.fill("grad_output", 0, _images(use, "self"))
    return use.dims("self")


def _images(use: Use, name: str) -> set[int]:
    rank = use.rank(name)
    return {dim for dim in use.dims(name) if dim >= rank - 2}


def _pooled(use: Use, name: str, pooled: Any) -> Dims:
    """The padded dimensions of what is pooled.

    Raises:
        MixesRows: windows reach into the padding, or their number is not that of the call.
    """
    found, sizes = use.dims(name), use.shape(pooled)
    inside = _images(use, name)
    if inside and use["ceil_mode"]:
        raise MixesRows("its windows reach behind the dimension")
    for at in ("kernel_size", "stride", "padding", "dilation"):
        if any(use.is_padded(use.number(item)) for item in use[at] or ()):
            raise MixesRows("it uses the size as a number")
    made = dict(found)
    for dim in inside:
        use.needs_prefix(found[dim])
        if not use.is_padded(sizes[dim]):
            raise MixesRows("it works along the dimension")
        made[dim] = extent_of(sizes[dim])
    return made


def _divided_alike(use: Use) -> None:
    counted = use["count_include_pad"] or use["divisor_override"] is not None
    if _images(use, "self") and not counted and any(use["padding"] or ()):
        raise MixesRows("it divides by how much of a window is inside of the dimension")


def _in_width(e: Emission, indices: fx.Node, width: Size, other: Size) -> fx.Node:
    """Positions in an image of a width as those of another width."""
    rows = e.call("aten.div.Tensor_mode", indices, width, rounding_mode="floor")
    columns = e.call("aten.sub.Tensor", indices, e.call("aten.mul.Tensor", rows, width))
    return e.call("aten.add.Tensor", e.call("aten.mul.Tensor", rows, other), columns)
