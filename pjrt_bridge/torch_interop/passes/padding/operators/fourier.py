"""Fourier transforms along padded dimensions, of the size that the call has.

A transform of n elements is a convolution with a chirp (L. Bluestein, "A linear filtering approach
to the computation of discrete Fourier transform", 1970): jk = (j**2 + k**2 - (k - j)**2) / 2. The
chirp depends on n, which a call brings, and the convolution is one of padded sizes.
"""

from __future__ import annotations

from math import pi

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import MixesRows, PaddedDims, Size, product
from pjrt_bridge.torch_interop.passes.padding.rows import Use

_REAL = {
    torch.float32: torch.float32,
    torch.complex64: torch.float32,
    torch.float64: torch.float64,
    torch.complex128: torch.float64,
}


def transformed(use: Use) -> PaddedDims:
    """Transforms of complex numbers, of real ones, and to real ones."""
    found, rank = use.dims("self"), use.rank("self")
    dims = [dim % rank for dim in use["dim"]]
    sizes = use.shape("self")
    if "last_dim_size" in use.arguments:
        sizes[dims[-1]] = use.number(use["last_dim_size"])
    inside = [dim for dim in dims if dim in found or use.is_padded(sizes[dim])]
    if not inside:
        return found
    for dim in inside:
        if dim not in found:
            raise MixesRows("it uses the size as a number")
        use.needs_prefix(found[dim])
        use.needs_elements(sizes[dim])
    use.fill("self", 0, inside)
    use.emit = lambda e: _Transform(e, use, sizes, inside).made(dims)
    others = {dim: extent for dim, extent in found.items() if dim not in inside}
    return {
        **others,
        **{dim: one for dim, one in use.promised(use.result).items() if dim in inside},
    }


class _Transform:
    """One call.

    Args:
        e: where to emit.
        use: of the operator.
        sizes: of the transforms, by dimension.
        padded: the dimensions that are padded and transformed.
    """

    def __init__(self, e: Emission, use: Use, sizes: list[Size], padded: list[int]) -> None:
        self._e, self._use, self._sizes, self._padded = e, use, sizes, padded
        self._dtype = _REAL[compat.promise(use["self"]).dtype]
        self._rank = use.rank("self")
        name = compat.operator_name(use.node.target) or ""
        self._from_real, self._to_real = "_fft_r2c" in name, "_fft_c2r" in name
        self._sign = -1 if self._from_real or use["forward"] else 1

    def made(self, dims: list[int]) -> fx.Node:
        """The result of transforms along dimensions, of which the last one may be halved."""
        e, x = self._e, self._e[self._use["self"]]
        halved = self._from_real or self._to_real
        others, last = (dims[:-1], dims[-1]) if halved else (dims, 0)
        if self._from_real:
            x = self._of_real(x, last)
        apart = [dim for dim in others if dim not in self._padded]
        if apart:
            x = e.call("aten._fft_c2c.default", x, apart, 0, self._sign < 0)
        for dim in others:
            if dim in self._padded:
                x = self._along(x, dim, self._sizes[dim])
        if self._to_real:
            x = self._real(x, last)
        return self._scaled(x, dims)

    def _of_real(self, x: fx.Node, dim: int) -> fx.Node:
        e, use = self._e, self._use
        if dim not in self._padded:
            return e.call("aten._fft_r2c.default", x, [dim], 0, use["onesided"])
        zero = e.call("aten.full.default", [], 0.0, dtype=self._dtype)
        x = self._along(e.call("aten.complex.default", x, zero), dim, self._sizes[dim])
        return e.call("aten.slice.Tensor", x, dim, 0, e.size(use.shape(use.result)[dim]))

    def _real(self, x: fx.Node, dim: int) -> fx.Node:
        e, size = self._e, self._sizes[dim]
        if dim not in self._padded:
            return e.call("aten._fft_c2r.default", x, [dim], 0, e.size(size))
        given = self._use.shape("self")[dim]
        # Each number but the first and, in the middle of an even size, the last is there twice.
        index = e.call("aten.arange.default", e.size(given), dtype=torch.int64)
        twice = e.call("aten.mul.Tensor", index, 2)
        once = e.call(
            "aten.logical_or.default",
            e.call("aten.eq.Scalar", index, 0),
            e.call("aten.eq.Tensor", twice, e.count(size, torch.int64)),
        )
        one, two = (e.call("aten.full.default", [], n, dtype=self._dtype) for n in (1.0, 2.0))
        weights = e.along(e.call("aten.where.self", once, one, two), dim, self._rank)
        x = e.longer(e.call("aten.mul.Tensor", x, weights), dim, self._rank, e.size(size - given))
        x = self._along(x, dim, size)
        return e.call("aten.select.int", e.call("aten.view_as_real.default", x), -1, 0)

    def _along(self, x: fx.Node, dim: int, size: Size) -> fx.Node:
        """A transform of complex numbers along a dimension; zeros are in its padding."""
        e = self._e
        index = e.call("aten.arange.default", e.size(size), dtype=torch.int64)
        chirp = e.along(self._chirp(index, size, self._sign), dim, self._rank)
        x = e.longer(e.call("aten.mul.Tensor", x, chirp), dim, self._rank, e.size(size))
        index = e.call("aten.arange.default", e.size(2 * size), dtype=torch.int64)
        back = e.call("aten.rsub.Scalar", index, e.size(2 * size))
        index = e.call("aten.minimum.default", index, back)
        other = self._chirp(index, size, -self._sign)
        other = e.call("aten._fft_c2c.default", other, [0], 0, True)
        x = e.call("aten._fft_c2c.default", x, [dim], 0, True)
        x = e.call("aten.mul.Tensor", x, e.along(other, dim, self._rank))
        x = e.call("aten._fft_c2c.default", x, [dim], 2, False)
        x = e.call("aten.slice.Tensor", x, dim, 0, e.size(size))
        return e.call("aten.mul.Tensor", x, chirp)

    def _chirp(self, index: fx.Node, size: Size, sign: int) -> fx.Node:
        """exp(sign * i * pi * index**2 / size), with an angle between -pi and pi."""
        e = self._e
        size, twice = e.count(size, torch.int64), e.count(2 * size, torch.int64)
        square = e.call("aten.mul.Tensor", index, index)
        square = e.call("aten.remainder.Tensor", square, e.call("aten.clamp.default", twice, 1))
        less = e.call("aten.sub.Tensor", square, twice)
        square = e.call("aten.where.self", e.call("aten.gt.Tensor", square, size), less, square)
        square = e.call("aten._to_copy.default", square, dtype=self._dtype)
        angle = e.call(
            "aten.div.Tensor", square, e.call("aten._to_copy.default", size, dtype=self._dtype)
        )
        angle = e.call("aten.mul.Tensor", angle, sign * pi)
        one = e.call("aten.full.default", [], 1.0, dtype=self._dtype)
        return e.call("aten.polar.default", one, angle)

    def _scaled(self, x: fx.Node, dims: list[int]) -> fx.Node:
        if self._use["normalization"] == 0:
            return x
        count = self._e.count(product(self._sizes[dim] for dim in dims), self._dtype)
        if self._use["normalization"] == 1:
            count = self._e.call("aten.sqrt.default", count)
        return self._e.call("aten.div.Tensor", x, count)
