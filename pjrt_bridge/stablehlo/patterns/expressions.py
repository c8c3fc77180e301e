"""Elementwise expressions: operations between values in memory, which a target may compute at once.

A root is the result of an operation that something reads from memory: a custom call, a product, a
function that is not inlined, or the caller. From there the operations are followed to what is in
memory already (`following`). A compiler would make a loop of them. An expression is computed
together with one before it that it reads, or that reads the same arrays (`merging`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.orders import inverse_order
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.known_numbers import dtype_of
from pjrt_bridge.stablehlo.patterns import donations
from pjrt_bridge.stablehlo.patterns.accesses import Access
from pjrt_bridge.stablehlo.patterns.following import (
    DTYPES,
    FROM_MEMORY,
    MOVED,
    STEPS,
    Followed,
    Found,
)
from pjrt_bridge.stablehlo.patterns.merging import MergedExpressions
from pjrt_bridge.stablehlo.patterns.reading import integers, shape_of
from pjrt_bridge.stablehlo.patterns.small_programs import LEAST, SmallPrograms

Order = tuple[int, ...]

_SLICE = "stablehlo.slice"

ROOTS = (*STEPS, "stablehlo.concatenate", _SLICE, "stablehlo.transpose")
"""Operations that may be roots."""

_JOINING = ("stablehlo.concatenate", "stablehlo.pad")
"""Operations that join arrays, by a call in small programs (`assemblies`)."""

_DEPTH = 4
"""Reshapes and transpositions that are followed from a value to what reads it."""


class Expressions:
    """The elementwise expressions of a program, by `Kernels.expression`.

    Args:
        kernels: of the target.
        small: tells in which programs roots of a few elements are looked at, too.
    """

    def __init__(self, kernels: Kernels, small: SmallPrograms) -> None:
        self._merged = MergedExpressions(kernels)
        self._small = small

    def __call__(self, b: Builder, operation: Operation) -> Sequence[Value] | None:
        """A root."""
        root = operation.handle.results[0]
        shape = shape_of(root)
        if str(dtype_of(root)) not in DTYPES:
            return None
        reading = _Reading(operation.name in MOVED, self._small.has(operation))
        if math.prod(shape) < LEAST and not reading.is_small:
            return None
        found = _overwriting(root) or _written(root, reading)
        if found is None or (operation.name == _SLICE and len(found.found.expression.steps) == 1):
            # To copy a part of what is in memory is an assembly, or left to the compiler.
            return None
        made = self._merged.computed(b, operation, found.found)
        if made is None or found.order == _row_major(shape):
            return None if made is None else [made]
        return [b.transpose(made, inverse_order(found.order))]


class _Reading(NamedTuple):
    """What counts as reading a root from memory.

    Attributes:
        moves: the root moves elements, which compilers make a part of a product.
        is_small: it is in a small program, where arrays are joined by calls, too.
    """

    moves: bool
    is_small: bool

    def is_one(self, user: Any) -> bool:
        """Whether an operation reads from memory, or takes part in what does."""
        if self.is_small and user.name in _JOINING:
            # Two halves are one expression with what computes them.
            return len({shape_of(item) for item in user.operands}) != 1 or len(user.operands) != 2
        return user.name in FROM_MEMORY


class _Root(NamedTuple):
    """The expression of a root, and the order of dimensions in which it is computed."""

    found: Found
    order: Order


def _overwriting(root: Any) -> _Root | None:
    """A root that takes the memory of an argument, which it is computed of."""
    for donor, order in donations.donors(root, _row_major(shape_of(root))):
        found = Followed(root, Access.whole(shape_of(root), order)).found()
        if found is not None:
            taking = found.taking(donor)
            if taking is not None:
                return _Root(taking, order)
    return None


def _written(root: Any, reading: _Reading) -> _Root | None:
    """A root that is read from memory of its own."""
    shape = shape_of(root)
    order = min(_orders_read(root, _row_major(shape), 0, reading), default=None)
    found = None if order is None else Followed(root, Access.whole(shape, order)).found()
    return None if order is None or found is None else _Root(found, order)


def _row_major(shape: Sequence[int]) -> Order:
    return tuple(range(len(shape)))


def _orders_read(value: Any, order: Order, depth: int, reading: _Reading) -> Iterator[Order]:
    """The orders of dimensions in which a value is read from memory, of which the least counts.

    Args:
        value: of the program.
        order: the dimensions of the root, as the value has them.
        depth: operations between the two.
        reading: what counts as that.
    """
    for use in value.uses:
        user = getattr(use.owner, "operation", use.owner)
        is_end = user.name == "func.return"
        if is_end and donations.may_take_memory(user, use.operand_number):
            # A loop writes a result to the memory that it takes.
            continue
        if reading.moves and user.name == "stablehlo.dot_general":
            continue
        if reading.is_one(user):
            yield order
        elif depth == _DEPTH:
            continue
        elif user.name == "stablehlo.reshape":
            # Behind it the dimensions are other ones.
            result = user.results[0]
            plain = _row_major(shape_of(result))
            read = _orders_read(result, plain, depth + 1, reading)
            if order == _row_major(order) and plain in read:
                yield order
        elif user.name == "stablehlo.transpose":
            turned = tuple(order[dim] for dim in integers(user, "permutation"))
            yield from _orders_read(user.results[0], turned, depth + 1, reading)
