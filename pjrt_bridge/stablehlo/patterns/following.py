"""What an elementwise expression is made of: the operations from a value back to what is in memory.

They are followed through those that compute element by element and those that move elements
(`accesses`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.kernel_attributes import (
    Expression,
    ExpressionRead,
    ExpressionResult,
    ExpressionStep,
)
from pjrt_bridge.stablehlo.known_numbers import (
    direction_of,
    dtype_of,
    kind_of,
    maker,
    number,
    selected,
    truth,
    users,
)
from pjrt_bridge.stablehlo.patterns import accesses
from pjrt_bridge.stablehlo.patterns.accesses import Access, NoAccess
from pjrt_bridge.stablehlo.patterns.elementwise import (
    COMPARED,
    COMPUTED,
    EXACT,
    LOGICAL,
    PRODUCTS,
    TURNED,
)
from pjrt_bridge.stablehlo.patterns.reading import integers, shape_of

FROM_MEMORY = frozenset(
    f"stablehlo.{name}" for name in ("convolution", "custom_call", "dot_general")
) | {"func.call", "func.return"}
"""Operations whose operands are in memory."""

IN_MEMORY = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("case", "constant", "convolution", "custom_call", "dot_general", "fft", "if", "reduce"),
        "while",
    )
) | {"func.call"}
"""Operations whose results are in memory."""

DTYPES = ("float32", "bfloat16", "bool")

STEPS = (
    *(f"stablehlo.{name}" for name in sorted(COMPUTED)),
    *("stablehlo.compare", "stablehlo.convert", "stablehlo.reduce_precision", "chlo.erf"),
)
"""Operations that may be steps."""

_PARTS = 8
"""A value of so many times fewer elements may be computed by itself, whatever it takes."""

_CHEAP = ("stablehlo.convert", "stablehlo.reduce_precision")
"""Operations that are made anyway where numbers are read, or cost no more than that."""

_RUN = 8
"""So many elements side by side have to be read side by side: others are read one by one."""

_TILE = 256
"""Or so many are in the two dimensions of a tile, which is read along the other dimension."""


class Found(NamedTuple):
    """An expression.

    Attributes:
        expression: its steps.
        leaves: what it reads: values that were written before, and constants.
        passed: the operations that it is made of.
        donors: by result the leaf whose memory it takes.
    """

    expression: Expression
    leaves: Sequence[Any]
    passed: Set[Any] = frozenset()
    donors: Mapping[int, Any] = MappingProxyType({})

    def taking(self, donor: Any) -> Found | None:
        """The same whose only result takes the memory of a leaf; None where it cannot."""
        found = self._replace(donors={0: donor})
        return found if found.may_overwrite() else None

    def may_overwrite(self) -> bool:
        """Whether results can take the memory of their donors.

        Each donor is read from its first to its last element alone, and has its result's type.
        """
        results, size = self.expression.results, self.expression.size
        reads = [
            (result, dtype_of(leaf), read)
            for result, donor in self.donors.items()
            for leaf, read in zip(self.leaves, self.expression.reads, strict=True)
            if not isinstance(leaf, np.ndarray) and leaf == donor
        ]
        return {result for result, _, _ in reads} == set(self.donors) and all(
            read == whole(size) and dtype == results[result].dtype for result, dtype, read in reads
        )

    def overwriting(self) -> Expression:
        """The expression, with the arrays whose memory results take."""
        places = {
            result: next(
                at
                for at, leaf in enumerate(self.leaves)
                if not isinstance(leaf, np.ndarray) and leaf == donor
            )
            for result, donor in self.donors.items()
        }
        return replace(self.expression, overwritten=places)

    def operands(self, b: Builder, operation: Operation) -> list[Value]:
        """What it reads, where an operation stands."""
        return [
            b.constant(leaf) if isinstance(leaf, np.ndarray) else operation.value(leaf)
            for leaf in self.leaves
        ]


def whole(size: int) -> ExpressionRead:
    """So many elements of an array that has no more."""
    return ExpressionRead(0, ((size, 1),))


def read_in_order(value: Any, access: Access) -> Found | None:
    """The expression of a value's elements in some order; None where there is none.

    What is in memory anyway is read; all of it lies side by side.
    """
    return Followed(value, access, is_root=False).found()


class _NoExpression(Exception):
    """A value is not made of what expressions have."""


class Followed:
    """The operations of an expression, from its root.

    Args:
        root: the value.
        access: all its elements, in the order in which they are computed.
        is_root: the expression takes the place of the value; else it is computed beside it.
    """

    def __init__(self, root: Any, access: Access, *, is_root: bool = True) -> None:
        self._root, self._access, self._is_root = root, access, is_root
        self._size = math.prod(shape_of(root))
        self._steps: list[ExpressionStep] = []
        self._known: dict[tuple[Any, Access], int] = {}
        self._leaves: list[Any] = []
        self._reads: list[ExpressionRead] = []
        self._passed: set[Any] = set()
        self._is_one_written = False

    def found(self) -> Found | None:
        """The expression; None where there is none."""
        try:
            result = self._step(self._root, self._access)
        except (NoAccess, _NoExpression):
            return None
        ways = [read.dims for read in self._reads]
        is_copy = len(self._steps) == 1 and ways == [((self._size, 1),)]
        # The operations that compute a value can write it in the order in which it is read.
        is_moved = len(self._steps) == 1 and self._is_one_written
        if not ways or (self._is_root and (is_copy or is_moved)):
            return None
        dtype = dtype_of(self._root)
        steps = self._steps
        if steps[result].operation == "round" and str(dtype) == "bfloat16":
            # It is rounded as it is written.
            (result,) = steps[result].operands
        written = ExpressionResult(result, tuple(size for size, _ in self._access.dims), dtype)
        expression = Expression(tuple(steps), tuple(self._reads), (written,))
        return Found(expression, self._leaves, self._passed)

    def _step(self, value: Any, access: Access) -> int:
        """The step that computes the elements of a value."""
        key = (value, access.joined)
        if key not in self._known:
            if len(self._steps) >= Expression.MOST_STEPS:
                raise _NoExpression
            self._known[key] = self._followed(value, access)
        return self._known[key]

    def _followed(self, value: Any, access: Access) -> int:
        known = _number(value)
        if known is not None:
            return self._put("number", number=known)
        made = maker(value)
        if made is None or made.name in IN_MEMORY or self._is_kept(value):
            return self._read(value, access)
        if not _is_step(made):
            return self._read_computed(value, access)
        self._passed.add(made)
        follow = MOVED.get(made.name)
        if follow is not None:
            return follow(self, made, access)
        if not self._is_small(value):
            return self._computed(made, access)
        if made.name not in _CHEAP:
            # It is computed once, and not for each element that reads it.
            try:
                return self._read(value, access)
            except _NoExpression:
                pass
        steps, leaves = len(self._steps), len(self._leaves)
        try:
            return self._computed(made, access)
        except (NoAccess, _NoExpression):
            del self._steps[steps:], self._leaves[leaves:], self._reads[leaves:]
            self._known = {key: step for key, step in self._known.items() if step < steps}
            return self._read(value, access)

    def _is_kept(self, value: Any) -> bool:
        """Whether a value that is not the root is in memory anyway."""
        return not self._is_root and any(user.name in FROM_MEMORY for user in users(value))

    def _read(self, value: Any, access: Access) -> int:
        """A value that is in memory."""
        way = access.joined
        size, step = way.dims[-1]
        is_short = step == 1 and size < _RUN and len(way.dims) > 1
        is_scattered = is_short or (step > 1 and not (self._is_root and _is_turned(way)))
        if is_scattered or len(way.dims) > Expression.MOST_DIMS:
            raise _NoExpression
        if len(self._leaves) == Expression.MOST_READS:
            raise _NoExpression
        self._leaves.append(value)
        self._reads.append(ExpressionRead(way.first, way.dims))
        return self._put("read", number=len(self._leaves) - 1)

    def _read_computed(self, value: Any, access: Access) -> int:
        """A value that other operations compute, which write it to memory: one of many elements."""
        if value == self._root or (self._is_one_written and not self._is_small(value)):
            raise _NoExpression
        self._is_one_written |= not self._is_small(value)
        return self._read(value, access)

    def _is_small(self, value: Any) -> bool:
        return math.prod(shape_of(value)) * _PARTS <= self._size

    # -- operations that compute --------------------------------------------------------------

    def _computed(self, made: Any, access: Access) -> int:
        name = made.name.removeprefix("stablehlo.")
        operands = list(made.operands)
        if name == "compare":
            return self._compared(made, access)
        if name == "convert":
            return self._converted(made, access)
        if name == "reduce_precision":
            bits = [int(made.attributes[key]) for key in ("exponent_bits", "mantissa_bits")]
            if bits != [8, 7]:
                raise _NoExpression
            return self._put("round", self._step(operands[0], access))
        if name == "chlo.erf":
            name = "erf"
        chosen = selected(made) if name == "select" else None
        if chosen is not None:
            return self._step(chosen, access)
        if any(shape_of(item) != shape_of(made.results[0]) for item in operands):
            # The truth of a selection may be one for all elements.
            raise _NoExpression
        dtype = str(dtype_of(made.results[0]))
        steps = [self._step(item, access) for item in operands]
        if dtype == "bool":
            return self._put(LOGICAL.get(name, name), *steps)
        found = self._raised(*steps) if name == "power" else self._put(name, *steps)
        is_rounded = dtype == "bfloat16" and name not in EXACT
        return self._put("round", found) if is_rounded else found

    def _raised(self, base: int, exponent: int) -> int:
        """A power, by products and roots where the exponent is a simple number."""
        step = self._steps[exponent]
        known = step.number if step.operation == "number" else None
        if known in (0.5, -0.5):
            return self._put("sqrt" if known == 0.5 else "rsqrt", base)
        if known is None or known not in PRODUCTS:
            return self._put("power", base, exponent)
        found = base
        for _ in range(int(abs(known)) - 1):
            found = self._put("multiply", found, base)
        return found if known > 0 else self._put("divide", self._put("number", number=1.0), found)

    def _compared(self, made: Any, access: Access) -> int:
        if kind_of(made) == "TOTALORDER":
            raise _NoExpression
        direction = direction_of(made)
        left, right = (self._step(item, access) for item in made.operands)
        if direction in TURNED:
            return self._put(TURNED[direction], right, left)
        return self._put(COMPARED[direction], left, right)

    def _converted(self, made: Any, access: Access) -> int:
        (source,) = made.operands
        before, after = (str(dtype_of(item)) for item in (source, made.results[0]))
        found = self._step(source, access)
        if after == "bool" and before != "bool":
            return self._put("not_equal", found, self._put("number", number=0.0))
        return self._put("round", found) if (before, after) == ("float32", "bfloat16") else found

    def _put(self, operation: str, *operands: int, number: float = 0.0) -> int:
        self._steps.append(ExpressionStep(operation, operands, number))
        return len(self._steps) - 1

    # -- operations that move elements --------------------------------------------------------

    def _reshaped(self, made: Any, access: Access) -> int:
        return self._step(made.operands[0], access)

    def _transposed(self, made: Any, access: Access) -> int:
        (source,) = made.operands
        permutation = integers(made, "permutation")
        return self._step(source, accesses.transposed(access, shape_of(source), permutation))

    def _repeated(self, made: Any, access: Access) -> int:
        (source,) = made.operands
        dims = integers(made, "broadcast_dimensions")
        shape, result = shape_of(source), shape_of(made.results[0])
        return self._step(source, accesses.repeated(access, shape, result, dims))

    def _sliced(self, made: Any, access: Access) -> int:
        (source,) = made.operands
        starts, strides = (integers(made, name) for name in ("start_indices", "strides"))
        shape, result = shape_of(source), shape_of(made.results[0])
        return self._step(source, accesses.sliced(access, shape, result, starts, strides))

    def _joined(self, made: Any, access: Access) -> int:
        """Two halves that lie side by side: both are computed, and one is selected."""
        dim = int(made.attributes["dimension"])
        shape = shape_of(made.results[0])
        if len(made.operands) != 2 or any(
            2 * shape_of(item)[dim] != shape[dim] for item in made.operands
        ):
            raise _NoExpression
        first, second = (self._step(item, access.of_part(shape, dim, 2)) for item in made.operands)
        is_first = np.arange(shape[dim]) < shape[dim] // 2
        ways = accesses.repeated(access, is_first.shape, shape, (dim,))
        return self._put("select", self._read(is_first, ways), first, second)


def _is_step(made: Any) -> bool:
    """Whether an operation may be a step, or moves what steps compute."""
    is_known = made.name in MOVED or made.name in STEPS
    return is_known and all(str(dtype_of(item)) in DTYPES for item in made.operands)


def _is_turned(way: Access) -> bool:
    """Whether tiles of an array are read in which all that lies side by side is used."""
    last, _ = way.dims[-1]
    return any(step == 1 and size * last >= _TILE for size, step in way.dims[:-1])


MOVED: Mapping[str, Callable[[Followed, Any, Access], int]] = {
    "stablehlo.broadcast_in_dim": Followed._repeated,
    "stablehlo.concatenate": Followed._joined,
    "stablehlo.reshape": Followed._reshaped,
    "stablehlo.slice": Followed._sliced,
    "stablehlo.transpose": Followed._transposed,
}


def _number(value: Any) -> float | None:
    """The number that all elements of a value are; None where that is not known."""
    if str(dtype_of(value)) != "bool":
        return number(value)
    known = truth(value)
    return None if known is None else float(known)
