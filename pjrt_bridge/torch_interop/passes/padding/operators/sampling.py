"""Sampling of images and volumes at points (`grid_sample`) with padded dimensions.

Points are counted from -1 to 1 over the size, so in an image with padding they would lie elsewhere:
there, what each point reads is computed with the sizes of the call, as
`lowering/nn/sampling.py` does.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import MixesRows, PaddedDims, product
from pjrt_bridge.torch_interop.passes.padding.formulas import Term
from pjrt_bridge.torch_interop.passes.padding.rows import Use

_NEAREST, _BICUBIC = 1, 2
_ZEROS, _REFLECTION = 0, 2
_A = -0.75


def sampled(use: Use) -> PaddedDims:
    """The rule of sampling at points."""
    found = _checked(use)
    if any(dim > 1 for dim in use.dims("input")):
        use.emit = lambda e: _Sampling(e, use).results()
    return found


def sampled_backward(use: Use) -> list[PaddedDims]:
    """The gradients of what is sampled and of the points."""
    found = _checked(use)
    for dim, extent in found.items():
        if dim not in use.dims("grad_output"):
            raise MixesRows("it combines the dimension with one of another size")
        use.unified(use.dims("grad_output")[dim], extent)
    for name in ("grad_output", "input", "grid"):
        use.fill(name, 0)
    if any(dim > 1 for dim in use.dims("input")):
        use.emit = lambda e: _Sampling(e, use).gradients()
    # Torch promises a gradient of the points where none is wanted, too.
    return [
        use.dims(name) if isinstance(result, torch.Tensor) else {}
        for name, result in zip(("input", "grid"), use.results, strict=True)
    ]


def _checked(use: Use) -> PaddedDims:
    """The padded dimensions of what points read."""
    image, points, rank = use.dims("input"), use.dims("grid"), use.rank("input")
    if (0 in image) != (0 in points):
        raise MixesRows("it combines the dimension with one of another size")
    if 0 in image:
        use.unified(image[0], points[0])
    for dim, extent in image.items():
        if dim > 1:
            use.needs_prefix(extent)
            use.needs_elements(use.shape("input")[dim])
            if compat.promise(use["grid"]).dtype not in (torch.float32, torch.float64):
                raise MixesRows("it rounds positions in the dimension to half precision")
    found = {dim: extent for dim, extent in image.items() if dim < 2}
    return found | {dim + 1: extent for dim, extent in points.items() if 0 < dim < rank - 1}


@dataclass(frozen=True)
class _PaddedReadElement:
    """One element that each point reads along one dimension, all (batch, points)."""

    place: Term
    weight: Term
    slope: Term


class _Sampling:
    """One call: points as (batch, points), elements as (batch, channels, elements)."""

    def __init__(self, e: Emission, use: Use) -> None:
        self._e, self._use = e, use
        self._mode, self._padding = use["interpolation_mode"], use["padding_mode"]
        self._shape, self._grid = use.shape("input"), use.shape("grid")
        self._dtype = compat.promise(use["grid"]).dtype
        self._points = product(self._grid[1:-1])
        self._elements = product(self._shape[2:])
        count = len(self._shape) - 2
        sizes = [self._grid[0], self._points]
        self._axes, self._scales = [], []
        for axis in range(count):
            at = Term(e, e[use["grid"]]).call("select.int", -1, count - 1 - axis)
            taps, scale = self._taps(at.call("reshape.default", list(map(e.size, sizes))), axis)
            self._axes.append(taps)
            self._scales.append(scale)

    def results(self) -> Any:
        """The sampled values."""
        e, image = self._e, self._flat("input", self._elements)
        total = None
        for taps in self._combined():
            place, inside = self._place(taps)
            read = self._over_channels(inside).where(*self._read(image, place))
            read = read * self._over_channels(self._weight(taps))
            total = read if total is None else total + read
        assert total is not None
        sizes = [*self._shape[:2], *self._grid[1:-1]]
        return total.call("view.default", [e.size(size) for size in sizes]).node

    def gradients(self) -> list[Any]:
        """The gradients of what is sampled, and of the points."""
        e, wanted = self._e, self._use["output_mask"]
        image, grad = self._flat("input", self._elements), self._flat("grad_output", self._points)
        table = image.like(0.0)
        slopes: list[Term | None] = [None] * len(self._axes)
        for taps in self._combined():
            place, inside = self._place(taps)
            inside = self._over_channels(inside)
            weighted = grad * self._over_channels(self._weight(taps))
            weighted = inside.where(weighted, weighted.like(0.0))
            table = table.call("scatter_add.default", 2, self._of_channels(place), weighted)
            if wanted[1] and self._mode != _NEAREST:
                read = inside.where(*self._read(image, place)) * grad
                read = read.call("sum.dim_IntList", [1])
                for axis, before in enumerate(slopes):
                    own = read * self._weight(taps, axis) * self._scales[axis]
                    slopes[axis] = own if before is None else before + own
        made: list[Any] = [None, None]
        if wanted[0]:
            made[0] = table.call("view.default", list(map(e.size, self._shape))).node
        if wanted[1]:
            made[1] = self._gradient_of_points(slopes)
        return made

    def _gradient_of_points(self, slopes: list[Term | None]) -> Any:
        e = self._e
        sizes = list(map(e.size, self._grid))
        if None in slopes:
            return e.call("aten.full.default", sizes, 0.0, dtype=self._dtype)
        ordered = [slope.node for slope in reversed(slopes) if slope is not None]
        return e.call("aten.view.default", e.call("aten.stack.default", ordered, -1), sizes)

    # -- places ------------------------------------------------------------------------------------

    def _taps(self, at: Term, axis: int) -> tuple[list[_PaddedReadElement], Term]:
        """Elements that points read along a dimension, and the slope of coordinates."""
        size = Term(self._e, self._e.count(self._shape[axis + 2], self._dtype))
        if self._use["align_corners"]:
            scale = (size - 1) * 0.5
            at = (at + 1) * scale
        else:
            scale = size * 0.5
            at = (at + 1) * scale - 0.5
        if self._mode == _BICUBIC:
            base = at.floor()
            found = self._cubic(at - base)
            taps = [
                _PaddedReadElement(self._padded(base + (k - 1), size)[0], weight, slope)
                for k, (weight, slope) in enumerate(found)
            ]
            return taps, scale
        at, slope = self._padded(at, size)
        one = at.like(1.0)
        if self._mode == _NEAREST:
            return [_PaddedReadElement(at.call("round.default"), one, one)], scale
        base = at.floor()
        part = at - base
        taps = [
            _PaddedReadElement(base, 1.0 - part, at.like(-1.0)),
            _PaddedReadElement(base + 1, part, one),
        ]
        return taps, slope * scale

    def _padded(self, at: Term, size: Term) -> tuple[Term, Term]:
        """A coordinate mapped into the image by the padding mode, and the derivative of that."""
        one, none = at.like(1.0), at.like(0.0)
        if self._padding == _ZEROS:
            return at, one
        slope, last = one, size - 1
        if self._padding == _REFLECTION:
            low = 0.0 if self._use["align_corners"] else -0.5
            span = last if self._use["align_corners"] else size
            # A single element has no span; the limits below put all points there.
            span = span.call("clamp.default", 0.5)
            at = at - low
            slope = at.below(0.0).where(at.like(-1.0), one)
            at = at.call("abs.default")
            extra = at.call("fmod.Tensor", span)
            flips = (at / span).floor()
            odd = flips.call("remainder.Scalar", 2).call("eq.Scalar", 1)
            slope = odd.where(slope * -1.0, slope)
            at = odd.where(span - extra, extra) + low
        outside = at.call("le.Scalar", 0.0) | at.call("ge.Tensor", last)
        at = at.call("minimum.default", last).call("clamp.default", 0.0)
        return at, outside.where(none, slope)

    @staticmethod
    def _cubic(part: Term) -> list[tuple[Term, Term]]:
        """Weights of four elements around a fraction, and their derivatives."""
        far, near = (_A, -5 * _A, 8 * _A, -4 * _A), (_A + 2, -(_A + 3), 0.0, 1.0)
        found = []
        for distance, (a, b, c, d), sign in (
            (part + 1, far, 1.0),
            (part, near, 1.0),
            (1.0 - part, near, -1.0),
            (2.0 - part, far, -1.0),
        ):
            weight = ((distance * a + b) * distance + c) * distance + d
            slope = (distance * (3 * a) + 2 * b) * distance + c
            found.append((weight, slope * sign))
        return found

    def _combined(self) -> list[tuple[_PaddedReadElement, ...]]:
        return list(itertools.product(*self._axes))

    def _weight(self, taps: Sequence[_PaddedReadElement], derived: int | None = None) -> Term:
        weight = None
        for axis, tap in enumerate(taps):
            own = tap.slope if axis == derived else tap.weight
            weight = own if weight is None else weight * own
        assert weight is not None
        return weight

    def _place(self, taps: Sequence[_PaddedReadElement]) -> tuple[Term, Term]:
        """Positions among all elements of the padded image, and which of them are in the call's."""
        place, inside = None, None
        for axis, tap in enumerate(taps):
            last = Term(self._e, self._e.count(self._shape[axis + 2] - 1, self._dtype))
            own = tap.place.call("ge.Scalar", 0.0) & tap.place.call("le.Tensor", last)
            inside = own if inside is None else inside & own
            at = own.where(tap.place, tap.place.like(0.0)).to(torch.int64)
            if place is not None:
                at = place * self._e.size(self._shape[axis + 2]) + at
            place = at
        assert place is not None
        assert inside is not None
        return place, inside

    # -- elements ----------------------------------------------------------------------------------

    def _flat(self, name: str, count: Any) -> Term:
        sizes = [self._e.size(size) for size in (*self._shape[:2], count)]
        return Term(self._e, self._e[self._use[name]]).call("reshape.default", sizes)

    def _over_channels(self, x: Term) -> Term:
        return x.call("unsqueeze.default", 1)

    def _of_channels(self, place: Term) -> Term:
        sizes = [self._e.size(size) for size in (*self._shape[:2], self._points)]
        return self._over_channels(place).call("expand.default", sizes)

    def _read(self, image: Term, place: Term) -> tuple[Term, Term]:
        """Elements at positions, and zeros."""
        read = image.call("gather.default", 2, self._of_channels(place))
        return read, read.like(0.0)
