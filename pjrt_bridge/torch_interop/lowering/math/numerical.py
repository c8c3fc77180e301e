"""Fourier transforms and triangular systems.

ATen semantics kept: transforms run over any dimensions and take their normalization as a number:
0 leaves sums as they are, 1 divides them by the root of the transformed size, 2 by the size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.builder.orders import inverse_order
from pjrt_bridge.stablehlo.kernels import FourierKind
from pjrt_bridge.torch_interop.lowering.context import Context, normalize_dim
from pjrt_bridge.torch_interop.lowering.registry import lowering
from pjrt_bridge.torch_interop.lowering.shaping.shape import part

_MOST = 3
"""Dimensions of one transform of StableHLO."""


@lowering("aten._fft_c2c.default")
def complex_transform(
    c: Context, x: Value, dim: Sequence[int], normalization: int, forward: bool
) -> Value:
    """Complex to complex, forward or backward."""
    dims = [normalize_dim(d, x.rank) for d in dim]
    sizes = [x.shape[d] for d in dims]
    return _normalized(c, _complex(c, x, dims, forward), sizes, normalization, undo=not forward)


@lowering("aten._fft_r2c.default")
def real_transform(
    c: Context, x: Value, dim: Sequence[int], normalization: int, onesided: bool
) -> Value:
    """Real to complex; onesided keeps the non-redundant half of the last of the dimensions."""
    dims = [normalize_dim(d, x.rank) for d in dim]
    sizes = [x.shape[d] for d in dims]
    others, together = dims[:-_MOST], dims[-_MOST:]
    if onesided:
        x = _along(c, x, together, "RFFT", sizes[-_MOST:])
        x = _complex(c, x, others, forward=True)
    else:
        x = _complex(c, c.cast(x, c.output.dtype), dims, forward=True)
    return _normalized(c, x, sizes, normalization, undo=False)


@lowering("aten._fft_c2r.default")
def inverse_to_real(
    c: Context, x: Value, dim: Sequence[int], normalization: int, last_dim_size: int
) -> Value:
    """The half spectrum back to real values, of the given size in the last of the dimensions."""
    dims = [normalize_dim(d, x.rank) for d in dim]
    sizes = [*(x.shape[d] for d in dims[:-1]), last_dim_size]
    x = part(c, x, dims[-1], 0, last_dim_size // 2 + 1)
    x = _complex(c, x, dims[:-_MOST], forward=False)
    x = _along(c, x, dims[-_MOST:], "IRFFT", sizes[-_MOST:])
    return _normalized(c, x, sizes, normalization, undo=True)


def _complex(c: Context, x: Value, dims: Sequence[int], forward: bool) -> Value:
    """A transform of complex numbers over any number of dimensions, in any order."""
    every = sorted(dims)
    for first in range(0, len(every), _MOST):
        some = every[first : first + _MOST]
        x = _along(c, x, some, "FFT" if forward else "IFFT", [x.shape[d] for d in some])
    return x


def _along(
    c: Context, x: Value, dims: Sequence[int], kind: FourierKind, lengths: Sequence[int]
) -> Value:
    """One transform; the last of the dimensions is the one of which a half is kept."""
    *others, last = dims
    order = [*(d for d in range(x.rank) if d not in dims), *sorted(others), last]
    length = dict(zip(dims, lengths, strict=True))
    found = c.kernels.fourier(
        c.b, c.b.transpose(x, order), kind, [length[d] for d in order[-len(dims) :]]
    )
    return c.b.transpose(found, inverse_order(order))


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
