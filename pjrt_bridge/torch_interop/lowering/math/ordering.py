"""Sorting by unsigned integers that have the order of the elements.

Compilers call a comparator that puts NaN last as a function for each comparison. With an element
and its position packed into one unsigned integer a plain comparison of one array is enough, for
which compilers have fast sorts; no two of these are equal, so that every sort is stable.
"""

from __future__ import annotations

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT32, Context
from pjrt_bridge.torch_interop.lowering.indexing.reading import gather_along

UINT32 = dtypes.of("uint32")
UINT64 = dtypes.of("uint64")

_LOW = (1 << 32) - 1
_INFINITY = {32: 0x7F800000, 64: 0x7FF0000000000000}


def fits_a_word(x: Value) -> bool:
    """Whether the ranks of the elements fit into 32 bits."""
    return x.dtype.bits <= 32


def ranks(c: Context, x: Value, *, nan_first: bool = False) -> Value:
    """Unsigned integers, 32 or 64 bits wide, in the order of the elements.

    Equal elements have equal ones, -0.0 and 0.0 too; NaN have the largest, or with `nan_first` the
    smallest, which no number has.
    """
    b = c.b
    kind = UINT32 if fits_a_word(x) else UINT64
    if not x.dtype.is_float:
        if x.dtype.is_signed_integer:
            wide = c.cast(x, dtypes.of(f"int{kind.bits}"))
            sign = b.full(x.shape, 1 << (kind.bits - 1), kind)
            return b.xor(b.bitcast_convert(wide, kind), sign)
        return c.cast(x, kind)
    wide = c.widen(x)
    # Compared as bits: processors may flush subnormal numbers to 0.
    bits, zero = b.bitcast_convert(wide, kind), b.full(x.shape, 0, kind)
    sign = b.full(x.shape, 1 << (kind.bits - 1), kind)
    infinity = b.full(x.shape, _INFINITY[kind.bits], kind)
    nan = b.compare(b.and_(bits, b.not_(sign)), infinity, "GT")
    bits = b.select(b.compare(bits, sign, "EQ"), zero, bits)
    ordered = b.select(b.compare(bits, sign, "GE"), b.not_(bits), b.xor(bits, sign))
    return b.select(nan, zero if nan_first else b.not_(zero), ordered)


def sorted_along(
    c: Context, x: Value, dim: int, *, descending: bool = False, positions: dtypes.DType = INT32
) -> tuple[Value, Value]:
    """The elements in ascending order along `dim`, and the positions that they had.

    NaN are the largest. `x` is not empty, and has that dimension.
    """
    found = c.kernels.sort(c.b, x, dim, descending=descending, positions=positions)
    if found is not None:
        return found
    places = _sorted_places(c, x, dim, descending)
    return gather_along(c, x, dim, places), c.cast(places, positions)


def _sorted_places(c: Context, x: Value, dim: int, descending: bool) -> Value:
    found = ranks(c, x)
    if descending:
        found = c.b.not_(found)
    return _places_by_words(c, (found,) if fits_a_word(x) else _halves(c, found), dim)


def _places_by_words(c: Context, words: tuple[Value, ...], dim: int) -> Value:
    """Positions along `dim` in the order of uint32 words, the most significant ones first.

    A radix sort: word by word from the least significant one, each sort stable.
    """
    *others, last = words
    places = _places(c, last, dim)
    for word in reversed(others):
        then = _places(c, gather_along(c, word, dim, places), dim)
        places = gather_along(c, places, dim, then)
    return places


def _places(c: Context, word: Value, dim: int) -> Value:
    b = c.b
    (found,) = b.sort(
        [_with_place(c, word, dim)], dim, lambda left, right: b.compare(left[0], right[0], "LT")
    )
    return _place(c, found)


def _with_place(c: Context, word: Value, dim: int) -> Value:
    b = c.b
    high = b.shift_left(b.convert(word, UINT64), b.full(word.shape, 32, UINT64))
    return b.or_(high, b.iota(word.shape, dim, UINT64))


def _place(c: Context, found: Value) -> Value:
    low, _ = reversed(_halves(c, found))
    return c.b.convert(low, INT32)


def _halves(c: Context, x: Value) -> tuple[Value, Value]:
    """The high and the low words."""
    b = c.b
    high = b.shift_right_logical(x, b.full(x.shape, 32, UINT64))
    low = b.and_(x, b.full(x.shape, _LOW, UINT64))
    return b.convert(high, UINT32), b.convert(low, UINT32)
