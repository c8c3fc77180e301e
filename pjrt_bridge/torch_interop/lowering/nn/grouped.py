"""Products of groups of rows, each with a matrix of its own: the experts of a mixture.

Rows are sorted by group and `ends` says where each group ends, so the sizes of groups are data. A
loop walks over the rows in blocks of about half the mean size of a group; a block ends where its
group does. So the work grows with the rows and not with rows times groups (the idea of MegaBlocks,
Gale et al., 2023). Rows behind the last group give 0. Half precision is accumulated in float32 and
rounded once for each row; gradients of matrices once for each block.
"""

from __future__ import annotations

from collections.abc import Callable

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT64, Context
from pjrt_bridge.torch_interop.lowering.linalg.matmul import product
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering

_LEAST_BLOCK = 16

_GroupStep = Callable[[Value, Value, Value, Value], Value]
"""`(group, first row, which rows of the block belong to it, carried)` to the next carried value."""


@lowering("transformers.grouped_mm_fallback.default")
def grouped_product(c: Context, x: Value, weight: Value, ends: Value) -> Value:
    """(rows, inputs) and (groups, inputs, outputs) to (rows, outputs)."""
    return _rows_product(c, x, weight, ends, contract=1)


@lowering("transformers.grouped_mm_fallback_backward.default")
def grouped_product_backward(
    c: Context, x: Value, weight: Value, ends: Value, grad: Value
) -> tuple[Value, Value]:
    """Gradients of the rows and of the matrices."""
    return _rows_product(c, grad, weight, ends, contract=2), _matrices_product(c, x, grad, ends)


@lowering("aten._grouped_mm.default")
def grouped_mm(
    c: Context,
    x: Value,
    y: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: object = None,
) -> Value:
    """Rows by matrices as above; or columns of `x` by rows of `y`, a matrix for each group."""
    if offs is None or bias is not None:
        raise NotLowerable("a grouped product without groups, or with a bias")
    if c.output.dtype != x.dtype:
        raise NotLowerable(f"a grouped product of {x.dtype} that gives {c.output.dtype}")
    if (x.rank, y.rank) == (2, 3):
        return _rows_product(c, x, y, offs, contract=1)
    if (x.rank, y.rank) == (2, 2):
        return _matrices_product(c, c.b.transpose(x, (1, 0)), y, offs)
    raise NotLowerable(f"a grouped product of tensors of rank {x.rank} and {y.rank}")


def _rows_product(c: Context, x: Value, weight: Value, ends: Value, *, contract: int) -> Value:
    b = c.b
    rows, width = x.shape[0], weight.shape[3 - contract]
    block = _block(rows, weight.shape[0])
    padded = _with_rows(c, x, block)
    zero = b.full((), 0, INT64)

    def step(group: Value, row: Value, inside: Value, done: Value) -> Value:
        part = b.dynamic_slice(padded, (row, zero), (block, x.shape[1]))
        matrix = b.reshape(
            b.dynamic_slice(weight, (group, zero, zero), (1, *weight.shape[1:])), weight.shape[1:]
        )
        found = product(c, part, matrix if contract == 1 else b.transpose(matrix, (1, 0)), x.dtype)
        old = b.dynamic_slice(done, (row, zero), (block, width))
        mask = b.broadcast_in_dim(inside, (block, width), (0,))
        new = b.select(mask, found, old)
        return b.dynamic_update_slice(done, new, (row, zero))

    made = _walk(c, ends, rows, block, c.full((rows + block, width), 0, x.dtype), step)
    return b.slice(made, (0, 0), (rows, width))


def _matrices_product(c: Context, x: Value, y: Value, ends: Value) -> Value:
    """For each group the sum over its rows of the outer products of `x` and `y`."""
    b = c.b
    rows, groups = x.shape[0], ends.shape[0]
    block = _block(rows, groups)
    left, right = _with_rows(c, x, block), _with_rows(c, y, block)
    one = (1, x.shape[1], y.shape[1])
    zero = b.full((), 0, INT64)

    def step(group: Value, row: Value, inside: Value, done: Value) -> Value:
        parts = [
            b.dynamic_slice(each, (row, zero), (block, each.shape[1])) for each in (left, right)
        ]
        mask = b.broadcast_in_dim(inside, parts[0].shape, (0,))
        parts[0] = b.select(mask, parts[0], c.full(parts[0].shape, 0, x.dtype))
        # Rows of the next group may hold NaN, so they are replaced, not multiplied by 0.
        mask = b.broadcast_in_dim(inside, parts[1].shape, (0,))
        parts[1] = b.select(mask, parts[1], c.full(parts[1].shape, 0, y.dtype))
        found = product(c, b.transpose(parts[0], (1, 0)), parts[1])
        old = b.dynamic_slice(done, (group, zero, zero), one)
        new = b.convert(b.add(c.widen(old), b.reshape(found, one)), x.dtype)
        return b.dynamic_update_slice(done, new, (group, zero, zero))

    return _walk(c, ends, rows, block, c.full((groups, *one[1:]), 0, x.dtype), step)


def _block(rows: int, groups: int) -> int:
    return max(1, min(rows, max(_LEAST_BLOCK, -(-rows // max(2 * groups, 1)))))


def _with_rows(c: Context, x: Value, count: int) -> Value:
    """Rows added at the end, so that no slice of a block is clamped."""
    zero = c.b.full((), 0, x.dtype)
    return c.b.pad(x, zero, (0, 0), (count, 0), (0, 0))


def _walk(c: Context, ends: Value, rows: int, block: int, start: Value, step: _GroupStep) -> Value:
    """Take a step for each block of rows."""
    b = c.b
    groups = ends.shape[0]
    if not (groups and rows):
        return start
    places = b.minimum(b.convert(ends, INT64), b.full((groups,), rows, INT64))
    zero, one = b.full((), 0, INT64), b.full((), 1, INT64)

    def place(group: Value) -> Value:
        return b.reshape(b.dynamic_slice(places, (group,), (1,)), ())

    stop = place(b.full((), groups - 1, INT64))

    def more(values: tuple[Value, ...]) -> Value:
        return b.compare(values[0], stop, "LT")

    def turn(values: tuple[Value, ...]) -> tuple[Value, ...]:
        row, carried = values
        passed = b.compare(places, b.broadcast_in_dim(row, (groups,), ()), "LE")
        group = b.reshape(b.reduce_sum(b.convert(passed, INT64), (0,)), ())
        end = place(group)
        numbers = b.add(b.iota((block,), 0, INT64), b.broadcast_in_dim(row, (block,), ()))
        inside = b.compare(numbers, b.broadcast_in_dim(end, (block,), ()), "LT")
        following = b.minimum(b.add(row, b.full((), block, INT64)), end)
        # Ends that do not increase, an error of the caller, must not make the loop infinite.
        return b.maximum(following, b.add(row, one)), step(group, row, inside, carried)

    return b.while_((zero, start), more, turn)[1]
