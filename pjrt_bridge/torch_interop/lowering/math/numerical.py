"""Fourier transforms and triangular systems.

ATen semantics kept: transforms run over any dimensions and take their normalization as a number:
0 leaves sums as they are, 1 divides them by the root of the transformed size, 2 by the size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.builder.orders import inverse_order
from pjrt_bridge.torch_interop.lowering.context import Context, normalize_dim
from pjrt_bridge.torch_interop.lowering.registry import lowering
from pjrt_bridge.torch_interop.lowering.shaping.shape import part

FftKind = Literal["FFT", "IFFT", "RFFT", "IRFFT"]


@lowering("aten._fft_c2c.default")
def complex_transform(
    c: Context, x: Value, dim: Sequence[int], normalization: int, forward: bool
) -> Value:
    """Complex to complex, forward or backward."""
    dims = [normalize_dim(d, x.rank) for d in dim]
    sizes = [x.shape[d] for d in dims]
    for d in dims:
        x = _along(c, x, d, "FFT" if forward else "IFFT", x.shape[d])
    return _normalized(c, x, sizes, normalization, undo=not forward)


@lowering("aten._fft_r2c.default")
def real_transform(
    c: Context, x: Value, dim: Sequence[int], normalization: int, onesided: bool
) -> Value:
    """Real to complex; onesided keeps the non-redundant half of the last of the dimensions."""
    dims = [normalize_dim(d, x.rank) for d in dim]
    sizes = [x.shape[d] for d in dims]
    last = dims[-1]
    if onesided:
        x = _along(c, x, last, "RFFT", x.shape[last])
    else:
        x = _along(c, c.cast(x, c.output.dtype), last, "FFT", x.shape[last])
    for d in dims[:-1]:
        x = _along(c, x, d, "FFT", x.shape[d])
    return _normalized(c, x, sizes, normalization, undo=False)


@lowering("aten._fft_c2r.default")
def inverse_to_real(
    c: Context, x: Value, dim: Sequence[int], normalization: int, last_dim_size: int
) -> Value:
    """The half spectrum back to real values, of the given size in the last of the dimensions."""
    dims = [normalize_dim(d, x.rank) for d in dim]
    sizes = [*(x.shape[d] for d in dims[:-1]), last_dim_size]
    for d in dims[:-1]:
        x = _along(c, x, d, "IFFT", x.shape[d])
    x = part(c, x, dims[-1], 0, last_dim_size // 2 + 1)
    x = _along(c, x, dims[-1], "IRFFT", last_dim_size)
    return _normalized(c, x, sizes, normalization, undo=True)


def _along(c: Context, x: Value, dim: int, kind: FftKind, length: int) -> Value:
    order = [d for d in range(x.rank) if d != dim] + [dim]
    return c.b.transpose(c.b.fft(c.b.transpose(x, order), kind, [length]), inverse_order(order))


def _normalized(
    c: Context, x: Value, sizes: Sequence[int], normalization: int, *, undo: bool
) -> Value:
    """Scale to ATen's normalization; `undo` if the transform has divided by the size already."""
    size = math.prod(sizes)
    divisor = {0: 1.0, 1: math.sqrt(size), 2: float(size)}[normalization]
    scale = (size if undo else 1) / divisor
    return x if scale == 1 else c.b.multiply(x, c.full(x.shape, scale, x.dtype))


@lowering("aten.linalg_solve_triangular.default")
def solve_triangular(
    c: Context,
    a: Value,
    rhs: Value,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Value:
    """`x` with `a @ x == rhs`, or `x @ a == rhs`; leading dimensions broadcast."""
    out = c.output.shape
    return c.b.triangular_solve(
        c.broadcast(a, (*out[:-2], *a.shape[-2:])),
        c.broadcast(rhs, out),
        left_side=left,
        lower=not upper,
        unit_diagonal=unitriangular,
    )
