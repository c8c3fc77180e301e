"""Elementwise expressions: operations between values in memory, which a target may compute at once.

A root is the result of an operation that something reads from memory: a custom call, a product, a
function that is not inlined, or the caller. From there the operations are followed to what is in
memory already, through those that compute element by element and those that move elements
(`accesses`). A compiler would make a loop of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.orders import inverse_order
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.kernel_attributes import Expression, ExpressionRead, ExpressionStep
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.known_numbers import dtype_of, maker, number
from pjrt_bridge.stablehlo.patterns import accesses
from pjrt_bridge.stablehlo.patterns.accesses import Access, NoAccess
from pjrt_bridge.stablehlo.patterns.reading import integers, shape_of

_COMPUTED = frozenset(
    (
        *("abs", "add", "and", "divide", "exponential", "log", "logistic", "maximum", "minimum"),
        *("multiply", "negate", "not", "or", "rsqrt", "select", "sqrt", "subtract", "tanh", "xor"),
    )
)
"""StableHLO's elementwise operations that expressions have."""

_LOGICAL = {"add": "or", "multiply": "and", "xor": "not_equal"}
"""Operations of bool by other names (StableHLO specification, "add", "multiply", "xor")."""

_COMPARED = {"EQ": "equal", "NE": "not_equal", "LT": "less", "LE": "less_equal"}
_TURNED = {"GT": "less", "GE": "less_equal"}
"""Comparisons, and those of the sides in the other order."""

_FROM_MEMORY = frozenset(
    f"stablehlo.{name}" for name in ("convolution", "custom_call", "dot_general")
) | {"func.call", "func.return"}
"""Operations whose operands are in memory."""

_IN_MEMORY = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("case", "constant", "convolution", "custom_call", "dot_general", "fft", "if", "reduce"),
        "while",
    )
) | {"func.call"}
"""Operations whose results are in memory."""

_NAMES = ("float32", "bfloat16", "bool")
_PARTS = 8
"""A value of so many times fewer elements may be computed by itself, whatever it takes."""

_CHEAP = ("stablehlo.convert", "stablehlo.reduce_precision")
"""Operations that are made anyway where numbers are read, or cost no more than that."""

_RUN = 8
"""So many elements side by side have to be read side by side: others are read one by one."""

_TILE = 256
"""Or so many are in the two dimensions of a tile, which is read along the other dimension."""

LEAST = 1 << 9
"""Elements from which on a root is looked at."""

ROOTS = (
    *(f"stablehlo.{name}" for name in _COMPUTED),
    *(f"stablehlo.{name}" for name in ("compare", "concatenate", "convert", "reduce_precision")),
    "stablehlo.transpose",
    "chlo.erf",
)
"""Operations that may be roots."""

_DEPTH = 4
"""Reshapes and transpositions that are followed from a value to what reads it."""

Order = tuple[int, ...]


def expression(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value] | None:
    """A root, by `Kernels.expression`."""
    root = operation.handle.results[0]
    shape = shape_of(root)
    if math.prod(shape) < LEAST or str(dtype_of(root)) not in _NAMES:
        return None
    moves = operation.name in _MOVED
    order = min(_orders_read(root, _row_major(shape), 0, moves), default=None)
    if order is None:
        return None
    found = _Followed(root, order).found()
    if found is None:
        return None
    made = kernels.expression(b, found.expression, found.operands(b, operation))
    return None if made is None else [b.transpose(made, inverse_order(order))]


class Found(NamedTuple):
    """An expression, and what it reads: values that were written before, and constants."""

    expression: Expression
    leaves: Sequence[Any]

    def operands(self, b: Builder, operation: Operation) -> list[Value]:
        """What it reads, where an operation stands."""
        return [
            b.constant(leaf) if isinstance(leaf, np.ndarray) else operation.value(leaf)
            for leaf in self.leaves
        ]


def read_in_order(value: Any, order: Order) -> Found | None:
    """The expression of a value's elements in an order of its dimensions; None where there is none.

    What is in memory anyway is read; all of it lies side by side.
    """
    return _Followed(value, order, is_root=False).found()


def _row_major(shape: Sequence[int]) -> Order:
    return tuple(range(len(shape)))


def _orders_read(value: Any, order: Order, depth: int, moves: bool) -> Iterator[Order]:
    """The orders of dimensions in which a value is read from memory, of which the least counts.

    Args:
        value: of the program.
        order: the dimensions of the root, as the value has them.
        depth: operations between the two.
        moves: the root moves elements, which compilers make a part of a product.
    """
    for use in value.uses:
        user = getattr(use.owner, "operation", use.owner)
        if user.name == "func.return" and _donates(user):
            # A result that takes the memory of an argument is best computed in it.
            continue
        if moves and user.name == "stablehlo.dot_general":
            continue
        if user.name in _FROM_MEMORY:
            yield order
        elif depth == _DEPTH:
            continue
        elif user.name == "stablehlo.reshape":
            # Behind it the dimensions are other ones.
            result = user.results[0]
            plain = _row_major(shape_of(result))
            read = _orders_read(result, plain, depth + 1, moves)
            if order == _row_major(order) and plain in read:
                yield order
        elif user.name == "stablehlo.transpose":
            turned = tuple(order[dim] for dim in integers(user, "permutation"))
            yield from _orders_read(user.results[0], turned, depth + 1, moves)


def _donates(end: Any) -> bool:
    """Whether results of the function may take the memory of arguments."""
    attributes = end.parent.attributes
    said = str(attributes["arg_attrs"]) if "arg_attrs" in attributes else ""
    return "tf.aliasing_output" in said or "jax.buffer_donor" in said


class _NoExpression(Exception):
    """A value is not made of what expressions have."""


class _Followed:
    """The operations of an expression, from its root.

    Args:
        root: the value.
        order: its dimensions, from the outermost to the innermost, as they are computed.
        is_root: the expression takes the place of the value; else it is computed beside it.
    """

    def __init__(self, root: Any, order: Order, *, is_root: bool = True) -> None:
        self._root, self._order, self._is_root = root, order, is_root
        self._size = math.prod(shape_of(root))
        self._steps: list[ExpressionStep] = []
        self._known: dict[tuple[Any, Access], int] = {}
        self._leaves: list[Any] = []
        self._reads: list[ExpressionRead] = []

    def found(self) -> Found | None:
        """The expression; None where there is none."""
        shape = shape_of(self._root)
        try:
            result = self._step(self._root, Access.whole(shape, self._order))
        except (NoAccess, _NoExpression):
            return None
        ways = [read.dims for read in self._reads]
        is_copy = len(self._steps) == 1 and ways == [((self._size, 1),)]
        if not ways or (self._is_root and is_copy):
            return None
        dtype = dtype_of(self._root)
        steps = self._steps
        if steps[result].operation == "round" and str(dtype) == "bfloat16":
            # It is rounded as it is written.
            (result,) = steps[result].operands
        expression = Expression(
            tuple(steps),
            tuple(self._reads),
            result,
            tuple(shape[dim] for dim in self._order),
            dtype,
        )
        return Found(expression, self._leaves)

    def _step(self, value: Any, access: Access) -> int:
        """The step that computes the elements of a value."""
        key = (value, access.joined)
        if key not in self._known:
            if len(self._steps) >= Expression.MOST_STEPS:
                raise _NoExpression
            self._known[key] = self._followed(value, access)
        return self._known[key]

    def _followed(self, value: Any, access: Access) -> int:
        if str(dtype_of(value)) not in _NAMES:
            raise _NoExpression
        known = _number(value)
        if known is not None:
            return self._put("number", number=known)
        made = maker(value)
        if made is None or made.name in _IN_MEMORY or self._is_kept(value):
            return self._read(value, access)
        follow = _MOVED.get(made.name)
        if follow is not None:
            return follow(self, made, access)
        is_small = math.prod(shape_of(value)) * _PARTS <= self._size
        if not is_small:
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
        users = (getattr(use.owner, "operation", use.owner) for use in value.uses)
        return not self._is_root and any(user.name in _FROM_MEMORY for user in users)

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
        elif name not in _COMPUTED:
            raise _NoExpression
        if any(shape_of(item) != shape_of(made.results[0]) for item in operands):
            # The truth of a selection may be one for all elements.
            raise _NoExpression
        dtype = str(dtype_of(made.results[0]))
        found = self._put(
            _LOGICAL.get(name, name) if dtype == "bool" else name,
            *(self._step(item, access) for item in operands),
        )
        is_narrow = dtype == "bfloat16"
        is_exact = name in ("abs", "maximum", "minimum", "negate", "select")
        return self._put("round", found) if is_narrow and not is_exact else found

    def _compared(self, made: Any, access: Access) -> int:
        stated = made.attributes
        # Without a type it is that of the operands.
        if "compare_type" in stated and "TOTALORDER" in str(stated["compare_type"]):
            raise _NoExpression
        direction = str(stated["comparison_direction"]).split()[-1].rstrip(">")
        left, right = (self._step(item, access) for item in made.operands)
        if direction in _TURNED:
            return self._put(_TURNED[direction], right, left)
        return self._put(_COMPARED[direction], left, right)

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


def _is_turned(way: Access) -> bool:
    """Whether tiles of an array are read in which all that lies side by side is used."""
    last, _ = way.dims[-1]
    return any(step == 1 and size * last >= _TILE for size, step in way.dims[:-1])


_MOVED: Mapping[str, Callable[[_Followed, Any, Access], int]] = {
    "stablehlo.broadcast_in_dim": _Followed._repeated,
    "stablehlo.concatenate": _Followed._joined,
    "stablehlo.reshape": _Followed._reshaped,
    "stablehlo.slice": _Followed._sliced,
    "stablehlo.transpose": _Followed._transposed,
}


def _number(value: Any) -> float | None:
    """The number that all elements of a value are; None where that is not known."""
    if str(dtype_of(value)) != "bool":
        return number(value)
    made = maker(value)
    while made is not None and made.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        made = maker(made.operands[0])
    if made is None or made.name != "stablehlo.constant":
        return None
    elements = made.attributes["value"]
    return float(elements.get_splat_value().value) if elements.is_splat else None
