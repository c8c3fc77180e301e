"""Operators that rearrange elements: views, copies, permutation, expansion, joining.

Values are functional and have no strides, so a view is a new value, a copy is the value itself,
and memory formats are ignored. Negative dimensions count from the back; a 0-d tensor accepts
dimension 0 and -1. Every size that torch would infer (`-1`) is read from the promised output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.builder.orders import Order, inverse_order, memory_order
from pjrt_bridge.torch_interop.lowering.context import Context, normalize_dim
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering


@lowering(
    "aten.alias.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.detach.default",
    "aten.detach_copy.default",
    "aten.lift_fresh_copy.default",
    "aten.lift_fresh.default",
)
def identity(c: Context, x: Value, *, memory_format: object = None) -> Value:
    """The value itself."""
    return x


@lowering(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten.view_copy.default",
    "aten._reshape_copy.default",
)
def view(c: Context, x: Value, size: Sequence[int]) -> Value:
    """The elements, row-major, in the output's shape."""
    return c.reshape(x, c.output.shape)


@lowering(
    "aten.unsqueeze.default",
    "aten.unsqueeze_copy.default",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze_copy.dims",
)
def insert_or_drop_ones(c: Context, x: Value, dim: int | Sequence[int] = ()) -> Value:
    """The same elements with dimensions of size 1 added or removed."""
    return c.reshape(x, c.output.shape)


@lowering("aten.view.dtype", "aten.view_copy.dtype")
def view_dtype(c: Context, x: Value, dtype: object) -> Value:
    """The bits read as another type; the last dimension shrinks or grows with its width."""
    to: DType = c.output.dtype
    if x.dtype == to:
        return x
    if any(d.is_bool or d.is_complex for d in (x.dtype, to)):
        raise NotLowerable(f"reinterpreting the bits of {x.dtype} as {to}")
    factor = max(x.dtype.bits, to.bits) // min(x.dtype.bits, to.bits)
    if to.bits > x.dtype.bits:
        grouped = c.b.reshape(x, (*x.shape[:-1], x.shape[-1] // factor, factor))
        return c.b.bitcast_convert(grouped, to)
    return c.reshape(c.b.bitcast_convert(x, to), c.output.shape)


@lowering("aten.permute.default", "aten.permute_copy.default")
def permute(c: Context, x: Value, dims: Sequence[int]) -> Value:
    """Dimension `dims[i]` of the input becomes dimension i."""
    return transpose_to(c, x, [normalize_dim(d, x.rank) for d in dims])


@lowering("aten.transpose.int", "aten.transpose_copy.int")
def transpose(c: Context, x: Value, dim0: int, dim1: int) -> Value:
    """Two dimensions swapped."""
    order = list(range(x.rank))
    if order:
        first, second = normalize_dim(dim0, x.rank), normalize_dim(dim1, x.rank)
        order[first], order[second] = order[second], order[first]
    return transpose_to(c, x, order)


@lowering("aten.t.default", "aten.t_copy.default", "aten.numpy_T.default")
def reverse_dimensions(c: Context, x: Value) -> Value:
    """A matrix transposed; vectors and numbers stay."""
    return transpose_to(c, x, list(range(x.rank))[::-1])


def transpose_to(c: Context, x: Value, order: Sequence[int]) -> Value:
    """`x` with its dimensions in the given order."""
    return x if list(order) == sorted(order) else c.b.transpose(x, tuple(order))


@lowering("aten.expand.default", "aten.expand_copy.default")
def expand(c: Context, x: Value, size: Sequence[int], *, implicit: bool = False) -> Value:
    """Dimensions of size 1, and new leading ones, repeated to the output's shape."""
    return c.broadcast(x, c.output.shape)


@lowering("aten.repeat.default")
def repeat(c: Context, x: Value, repeats: Sequence[int]) -> Value:
    """The whole tensor tiled `repeats[i]` times along dimension i."""
    sizes = (1,) * (len(repeats) - x.rank) + x.shape
    tiled = [n for pair in zip(repeats, sizes, strict=True) for n in pair]
    kept = tuple(2 * d + 1 for d in range(len(sizes)))
    blocks = c.b.broadcast_in_dim(c.reshape(x, sizes), tuple(tiled), kept)
    return c.reshape(blocks, c.output.shape)


@lowering("aten.cat.default")
def concatenate(c: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Joined along `dim` in the promoted type; empty 1-d tensors are ignored, as in ATen."""
    out = c.output
    parts = [c.cast(t, out.dtype) for t in tensors if t.shape != (0,) or len(out.shape) == 1]
    return parts[0] if len(parts) == 1 else _joined(c, parts, normalize_dim(dim, len(out.shape)))


def _joined(c: Context, parts: Sequence[Value], dim: int) -> Value:
    """Joined as most of the elements lie in memory.

    Compilers write a join to memory row-major, where all that is computed before and after it may
    lie in another order.
    """
    sizes: Counter[Order] = Counter()
    for part in parts:
        sizes[memory_order(part)] += part.size
    order = max(sizes, key=sizes.__getitem__)
    if order == tuple(range(len(order))):
        return c.b.concatenate(parts, dim)
    joined = c.b.concatenate([c.b.transpose(part, order) for part in parts], order.index(dim))
    return c.b.transpose(joined, inverse_order(order))


@lowering("aten.stack.default")
def stack(c: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Joined along a new dimension `dim`."""
    out = c.output
    at = normalize_dim(dim, len(out.shape))
    parts = [c.reshape(c.cast(t, out.dtype), (*t.shape[:at], 1, *t.shape[at:])) for t in tensors]
    return c.b.concatenate(parts, at)


@lowering("aten.flip.default")
def flip(c: Context, x: Value, dims: Sequence[int]) -> Value:
    """The order of elements reversed along each of `dims`."""
    return c.b.reverse(x, tuple(normalize_dim(d, x.rank) for d in dims)) if dims and x.rank else x


def part(c: Context, x: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
    """`x` restricted to `range(start, stop, step)` along one dimension."""
    if (start, stop, step) == (0, x.shape[dim], 1):
        return x
    turned, order = _with_channels_last(c, x)
    low, high, strides = [0] * x.rank, list(turned.shape), [1] * x.rank
    at = order.index(dim)
    low[at], high[at], strides[at] = start, stop, step
    found = c.b.slice(turned, tuple(low), tuple(high), tuple(strides))
    return found if turned is x else c.b.transpose(found, inverse_order(order))


def _with_channels_last(c: Context, x: Value) -> tuple[Value, Order]:
    """A value with its dimensions as they lie in memory, and their order.

    Only data of convolutions is turned. Compilers write what is cut or padded row-major, and would
    copy such data before and after.
    """
    order, plain = memory_order(x), tuple(range(x.rank))
    if x.rank < 4 or order != (0, *plain[2:], 1):
        return x, plain
    return c.b.transpose(x, order), order


@lowering("aten.constant_pad_nd.default")
def constant_pad(c: Context, x: Value, pad: Sequence[int], value: bool | int | float = 0) -> Value:
    """Pairs of (before, after), last dimension first; negative amounts crop."""
    low, high = [0] * x.rank, [0] * x.rank
    for pair, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        low[-1 - pair], high[-1 - pair] = before, after
    if not any((*low, *high)):
        return x
    turned, order = _with_channels_last(c, x)
    amounts = ([item[dim] for dim in order] for item in (low, high))
    padded = c.b.pad(turned, c.full((), value, x.dtype), *amounts)
    return padded if turned is x else c.b.transpose(padded, inverse_order(order))


@lowering("aten.copy.default")
def copy(c: Context, x: Value, source: Value, non_blocking: bool = False) -> Value:
    """`source` in the type and shape of `x`."""
    return c.broadcast(c.cast(source, x.dtype), x.shape).rounded


@lowering("aten.view_as_real.default", "aten.view_as_real_copy.default")
def view_as_real(c: Context, x: Value) -> Value:
    """Real and imaginary parts in a new last dimension."""
    parts = [c.reshape(p, (*x.shape, 1)) for p in (c.b.real(x), c.b.imag(x))]
    return c.b.concatenate(parts, x.rank)


@lowering("aten.view_as_complex.default", "aten.view_as_complex_copy.default")
def view_as_complex(c: Context, x: Value) -> Value:
    """The last dimension of size 2 read as real and imaginary part."""
    real, imag = (c.reshape(part(c, x, x.rank - 1, i, i + 1), x.shape[:-1]) for i in (0, 1))
    return c.b.complex_(real, imag)


@lowering("aten.complex.default")
def complex_(c: Context, real: Value, imag: Value) -> Value:
    """A complex tensor from its parts."""
    return c.b.complex_(*(c.broadcast(v, c.output.shape) for v in (real, imag)))


@lowering("aten._conj.default", "aten._conj_physical.default", "aten.conj_physical.default")
def conjugate(c: Context, x: Value) -> Value:
    """The imaginary part negated; real tensors stay."""
    if not x.dtype.is_complex:
        return x
    return c.b.complex_(c.b.real(x), c.b.negate(c.b.imag(x)))
