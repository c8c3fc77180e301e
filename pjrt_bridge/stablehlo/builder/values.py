"""SSA values of a Builder, the bodies of its regions, and checks of arguments of its methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.wrong_arguments import wrong


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """Where values may be used; each block is one.

    Attributes:
        module: what they are in. Their handles are invalid without it, and do not keep it.
    """

    module: Any = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One SSA value of a Builder; it can be used inside the scope that made it and deeper ones.

    Attributes:
        type: its shape and element type.
        origin: what it has the elements of, in another order or shape; None where it was computed.
        exact: what it was rounded from, which readers may take in its place; None: they may not.
        widened: what it was converted from, of fewer bits: it has the same numbers wherever its
            element type has them all. None where it was not.
        repeats: what it has the elements of, repeated along other dimensions; None where it was
            computed.
        reverses: what it has the elements of, backwards along some dimensions; None where it was
            computed.
    """

    type: TensorType
    _handle: Any = field(repr=False)
    _scope: Scope | None = field(repr=False)
    origin: Origin | None = field(default=None, repr=False)
    exact: Value | None = field(default=None, repr=False)
    widened: Value | None = field(default=None, repr=False)
    repeats: Repeats | None = field(default=None, repr=False)
    reverses: Reverses | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per dimension."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return self.type.rank

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.type.size

    @property
    def rounded(self) -> Value:
        """The same value, which all read as it was rounded."""
        return self if self.exact is None else replace(self, exact=None)


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """A value whose elements another value has: transposed, or in another shape.

    Attributes:
        value: where the elements are from.
        permutation: of the transposition; None for a reshape.
    """

    value: Value
    permutation: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class Reverses:
    """What a value has the elements of, backwards.

    Attributes:
        value: the other.
        dims: the dimensions that are reversed.
    """

    value: Value
    dims: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class Repeats:
    """A value that is repeated, as by `Builder.broadcast_in_dim`.

    Attributes:
        value: what is repeated.
        dims: of the result, for each of its dimensions.
    """

    value: Value
    dims: tuple[int, ...]


Body = Callable[[tuple[Value, ...]], "Value | Sequence[Value]"]
"""A region's content: from the block's arguments to what the region returns."""

PairBody = Callable[[tuple[Value, ...], tuple[Value, ...]], "Value | Sequence[Value]"]
"""A region over pairs, as in reduce: first all left (accumulated) values, then all right ones."""


ElementwiseFunction = Callable[..., "Value | None"]
"""Emits a function of values of one shape, given a builder and these; None: the operation stays."""

Region = tuple[Sequence[TensorType], Body]
"""Types of a region's arguments, and its body."""


def paired(types: Sequence[TensorType], body: PairBody) -> Region:
    """A region over two of each type: all left values, then all right ones."""
    count = len(types)
    return [*types, *types], lambda args: body(args[:count], args[count:])


def as_tuple(values: Value | Sequence[Value]) -> tuple[Value, ...]:
    """The results of a body, as a tuple.

    Raises:
        ProgramError: it is no value and no sequence.
    """
    if isinstance(values, Value):
        return (values,)
    if not isinstance(values, (tuple, list)):
        raise ProgramError(
            wrong("what the body of an operation returned", values, "a Value or a sequence of them")
        )
    return tuple(values)


def scalars(values: Sequence[Value]) -> list[TensorType]:
    """The 0-d types of the values' elements: what most regions work on."""
    return [TensorType((), value.dtype) for value in values]


def check_dims(op: str, what: str, dims: Sequence[int], rank: int) -> tuple[int, ...]:
    """The dimensions, if they are distinct and within the rank.

    Raises:
        ProgramError: otherwise; negative dimensions do not count from the end.
    """
    if len(set(dims)) != len(dims) or any(not 0 <= dim < rank for dim in dims):
        raise ProgramError(
            f"{op}: {what} must be distinct dimensions of a rank {rank} tensor, found {list(dims)}"
        )
    return tuple(dims)


def check_length(op: str, what: str, items: Sequence[Any], expected: int) -> None:
    """Check that there is one item per dimension (or operand).

    Raises:
        ProgramError: another number of items.
    """
    if len(items) != expected:
        raise ProgramError(f"{op}: {what} needs {expected} entries, found {len(items)}")
