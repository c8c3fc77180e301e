"""Elements of memory by strides and offset: `as_strided` and what writes through such a view.

Both address memory, so they need a tensor that lies row-major there (`Context.input_order`).
Most views are a box in the memory once it is given a shape that follows their strides: a slice, or
a slice that is replaced. The others are gathered and scattered, element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT64, Context, MemoryOrder
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering
from pjrt_bridge.torch_interop.lowering.shaping.slicing import take


@lowering("aten.as_strided.default", "aten.as_strided_copy.default")
def as_strided(
    c: Context,
    x: Value,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Value:
    """The elements of a row-major tensor at `storage_offset + sum(index * stride)`."""
    _check(c, x, size, stride, storage_offset)
    return read(c, c.reshape(x, (x.size,)), size, stride, storage_offset or 0)


@lowering("aten.as_strided_scatter.default")
def as_strided_scatter(
    c: Context,
    x: Value,
    src: Value,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Value:
    """`x` with the elements that such a view addresses replaced by `src`."""
    _check(c, x, size, stride, storage_offset)
    flat = c.reshape(x, (x.size,))
    source = c.broadcast(c.cast(src, x.dtype), tuple(size))
    return c.reshape(write(c, flat, source, size, stride, storage_offset or 0), x.shape)


@lowering("pjrt_bridge.read_at.default", values=("offset",))
def read_moving_view(
    c: Context, memory: Value, size: Sequence[int], stride: Sequence[int], offset: Value | int
) -> Value:
    """The elements of a view of a row-major array."""
    if isinstance(offset, Value):
        return read_at(c, memory, size, stride, offset)
    return read(c, memory, size, stride, offset)


@lowering("pjrt_bridge.write_at.default", values=("offset",))
def write_moving_view(
    c: Context,
    memory: Value,
    part: Value,
    size: Sequence[int],
    stride: Sequence[int],
    offset: Value | int,
) -> Value:
    """A row-major array with other elements where a view is."""
    if isinstance(offset, Value):
        return write_at(c, memory, part, size, stride, offset)
    return write(c, memory, part, size, stride, offset)


def _check(
    c: Context, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> None:
    if c.input_order is not MemoryOrder.WHOLE:
        raise NotLowerable(
            "as_strided of a tensor that does not lie row-major from the start of its memory"
        )
    reach = (offset or 0) + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if min(size, default=1) and reach >= x.size:
        raise NotLowerable(f"as_strided reaches element {reach} of a tensor of {x.size}")


@dataclass(frozen=True)
class _Box:
    """A view of flat memory as a box.

    Attributes:
        memory: the shape of the memory: a dimension for each of `order`, and one for the elements
            between two of the last; its size may be beyond the end of the memory.
        start: of the box in each of these dimensions.
        order: dimensions of the view from the slowest to the fastest varying, without those of
            size 1 and those that repeat elements.
        counts: their sizes.
    """

    memory: tuple[int, ...]
    start: tuple[int, ...]
    order: tuple[int, ...]
    counts: tuple[int, ...]

    @staticmethod
    def of(elements: int, size: Sequence[int], stride: Sequence[int], offset: int) -> _Box | None:
        """The box of a view; None where it is none."""
        dims = [d for d, n in enumerate(size) if n > 1 and stride[d]]
        order = sorted(dims, key=lambda d: -stride[d])
        steps = [stride[d] for d in order]
        if any(fast <= 0 or slow % fast for slow, fast in pairwise([*steps, 1])):
            return None
        rows = -(-elements // steps[0]) if steps else 1
        memory = (
            (rows, *(slow // fast for slow, fast in pairwise([*steps, 1])))
            if steps
            else (elements,)
        )
        start, rest = [], offset
        for step in steps:
            start.append(rest // step)
            rest %= step
        start.append(rest)
        counts = [*(size[d] for d in order)]
        inside = all(
            first + count <= extent
            for first, count, extent in zip(start, [*counts, 1], memory, strict=True)
        )
        return _Box(memory, tuple(start), tuple(order), tuple(counts)) if inside else None

    def shaped(self, c: Context, memory: Value) -> Value:
        """The memory in this shape."""
        beyond = prod(self.memory) - memory.size
        if beyond:
            memory = c.b.pad(_flat(c, memory), c.full((), 0, memory.dtype), [0], [beyond])
        return c.reshape(memory, self.memory)


def _flat(c: Context, memory: Value) -> Value:
    """Memory in one dimension, over which a partitioner does not divide it as it was before."""
    return c.reshape(memory, (memory.size,))


def read(
    c: Context, memory: Value, size: Sequence[int], stride: Sequence[int], offset: int
) -> Value:
    """The elements that a view addresses of memory, a row-major array of any shape."""
    if 0 in size:
        return c.full(tuple(size), 0, memory.dtype)
    box = _Box.of(memory.size, size, stride, offset)
    if box is None:
        return take(c, _flat(c, memory), _addresses(c, size, stride, offset), 0)
    limits = [at + n for at, n in zip(box.start, (*box.counts, 1), strict=True)]
    found = c.b.slice(box.shaped(c, memory), box.start, tuple(limits), (1,) * len(limits))
    found = c.reshape(found, box.counts)
    # Where the dimensions of the box are in the view; the others repeat what is there.
    return c.b.broadcast_in_dim(found, tuple(size), box.order)


def write(
    c: Context,
    memory: Value,
    source: Value,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
) -> Value:
    """Memory with what a view addresses replaced; where it repeats elements any is taken.

    Args:
        c: emits.
        memory: a row-major array of any shape, which the result has, too.
        source: the elements.
        size: of the view, as `stride` and `offset`.
        stride: see above.
        offset: see above.
    """
    if 0 in size:
        return memory
    box = _Box.of(memory.size, size, stride, offset)
    if box is None or prod(box.counts) != source.size:
        positions = _addresses(c, size, stride, offset)
        (found,) = c.b.scatter(
            [_flat(c, memory)],
            c.reshape(positions, (positions.size, 1)),
            [c.reshape(source, (positions.size,))],
            lambda _, new: new,
            update_window_dims=[],
            inserted_window_dims=[0],
            scatter_dims_to_operand_dims=[0],
            index_vector_dim=1,
        )
        return c.reshape(found, memory.shape)
    # Dimensions of size 1 may be anywhere.
    others = [d for d in range(len(size)) if d not in box.order]
    part = c.b.transpose(source, (*others, *box.order)) if source.rank else source
    shaped = box.shaped(c, memory)
    whole = tuple(box.counts) == shaped.shape[:-1] and shaped.shape[-1] == 1
    part = c.reshape(part, (*box.counts, 1))
    if not whole:
        part = c.kernels.overwrite(c.b, shaped, part, box.start)
    if part.size != memory.size:
        part = c.b.slice(_flat(c, part), (0,), (memory.size,), (1,))
    return c.reshape(part, memory.shape)


def read_at(
    c: Context, memory: Value, size: Sequence[int], stride: Sequence[int], offset: Value
) -> Value:
    """What `read` gives, at an offset that is a 0-d value."""
    part = c.b.dynamic_slice(_flat(c, memory), [offset], (_reach(size, stride),))
    return read(c, part, size, stride, 0)


def write_at(
    c: Context,
    memory: Value,
    source: Value,
    size: Sequence[int],
    stride: Sequence[int],
    offset: Value,
) -> Value:
    """What `write` gives, at an offset that is a 0-d value."""
    flat = _flat(c, memory)
    part = c.b.dynamic_slice(flat, [offset], (_reach(size, stride),))
    changed = write(c, part, source, size, stride, 0)
    return c.reshape(c.b.dynamic_update_slice(flat, changed, [offset]), memory.shape)


def _reach(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of memory from the first to the last of a view that has elements."""
    return 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))


def _addresses(c: Context, size: Sequence[int], stride: Sequence[int], offset: int) -> Value:
    positions = c.full(size, offset, INT64)
    for d, step in enumerate(stride):
        counter = c.b.iota(tuple(size), d, INT64)
        positions = c.b.add(positions, c.b.multiply(counter, c.full(size, step, INT64)))
    return positions
