"""Elementwise expressions: operations between values in memory, which a target may compute at once.

A root is the result of an elementwise operation that something reads from memory: a custom call, a
product, a function that is not inlined, or the caller. From there the operations are followed to
what is in memory already. A compiler would make a loop of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.orders import inverse_order
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.kernel_attributes import Expression, ExpressionRead, ExpressionStep
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.known_numbers import dtype_of, maker, name_of, number
from pjrt_bridge.stablehlo.patterns.reading import integers, shape_of

_COMPUTED: Mapping[str, int] = {
    **dict.fromkeys(("add", "and", "divide", "maximum", "minimum", "multiply", "or"), 2),
    **dict.fromkeys(("abs", "exponential", "log", "logistic", "negate", "not"), 1),
    **dict.fromkeys(("rsqrt", "sqrt", "tanh"), 1),
    **{"select": 3, "subtract": 2, "xor": 2},
}
"""Operands of StableHLO's elementwise operations that expressions have."""

_COMPARED = {"EQ": "equal", "NE": "not_equal", "LT": "less", "LE": "less_equal"}
_TURNED = {"GT": "less", "GE": "less_equal"}
"""Comparisons, and those of the sides in the other order."""

_FROM_MEMORY = frozenset(
    ("func.call", "func.return", *(f"stablehlo.{name}" for name in ("convolution", "custom_call")))
) | {"stablehlo.dot_general"}
"""Operations whose operands are in memory."""

_IN_MEMORY = frozenset(
    f"stablehlo.{name}"
    for name in ("convolution", "custom_call", "dot_general", "fft", "reduce", "while")
) | {"func.call"}
"""Operations whose results are in memory."""

_NAMES = ("float32", "bfloat16", "bool")
_PARTS = 8
"""A value of so many times fewer elements may be computed by itself, whatever it takes."""

LEAST = 1 << 14
"""Elements from which on a root is looked at."""

ROOTS = (
    *(f"stablehlo.{name}" for name in _COMPUTED),
    "stablehlo.compare",
    "stablehlo.convert",
    "stablehlo.reduce_precision",
    "chlo.erf",
)
"""Operations that may be roots."""

Order = tuple[int, ...]


def expression(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value] | None:
    """A root, by `Kernels.expression`."""
    root = operation.handle.results[0]
    shape = shape_of(root)
    if math.prod(shape) < LEAST or str(dtype_of(root)) not in _NAMES:
        return None
    order = _read_order(root)
    if order is None:
        return None
    found = _Followed(root, order).found()
    if found is None:
        return None
    leaves, described = found
    made = kernels.expression(b, described, [operation.value(leaf) for leaf in leaves])
    return None if made is None else [b.transpose(made, inverse_order(order))]


def _read_order(root: Any) -> Order | None:
    """The order of dimensions in which a value is read from memory; None where it is not."""
    row_major = tuple(range(len(shape_of(root))))
    found = None
    for order in _orders_read(root, row_major, 0):
        if order == row_major:
            return order
        found = found or order
    return found


def _orders_read(value: Any, order: Order, depth: int) -> Iterator[Order]:
    for use in value.uses:
        user = getattr(use.owner, "operation", use.owner)
        if user.name == "func.return" and _donates(user):
            # A result that takes the memory of an argument is best computed in it.
            continue
        if user.name in _FROM_MEMORY:
            yield order
        elif depth == _DEPTH:
            continue
        elif user.name == "stablehlo.reshape" and order == tuple(range(len(order))):
            # What is behind it reads dimensions in another order than this value has them.
            is_read = any(
                order == tuple(range(len(order)))
                for order in _orders_read(
                    user.results[0], tuple(range(len(shape_of(user.results[0])))), depth + 1
                )
            )
            if is_read:
                yield order
        elif user.name == "stablehlo.transpose":
            turned = tuple(order[dim] for dim in integers(user, "permutation"))
            yield from _orders_read(user.results[0], turned, depth + 1)


def _donates(end: Any) -> bool:
    """Whether results of the function may take the memory of arguments."""
    attributes = end.parent.attributes
    said = str(attributes["arg_attrs"]) if "arg_attrs" in attributes else ""
    return "tf.aliasing_output" in said or "jax.buffer_donor" in said


_DEPTH = 4
"""Reshapes and transpositions that are followed from a value to what reads it."""


class _Followed:
    """The operations of an expression, from its root.

    Args:
        root: the value.
        order: its dimensions, from the outermost to the innermost, as they are computed.
    """

    def __init__(self, root: Any, order: Order) -> None:
        self._root, self._order = root, order
        self._size = math.prod(shape_of(root))
        self._steps: list[ExpressionStep] = []
        self._known: dict[tuple[Any, Order], int] = {}
        self._leaves: list[Any] = []
        self._reads: list[ExpressionRead] = []

    def found(self) -> tuple[Sequence[Any], Expression] | None:
        """Values that are read, and the expression; None where there is none."""
        try:
            result = self._step(self._root, self._order, is_root=True)
        except _NoExpression:
            return None
        if not any(read.period == self._size for read in self._reads):
            return None
        shape = shape_of(self._root)
        return self._leaves, Expression(
            tuple(self._steps),
            tuple(self._reads),
            result,
            tuple(shape[dim] for dim in self._order),
            dtype_of(self._root),
        )

    def _step(self, value: Any, order: Order, *, is_root: bool = False) -> int:
        """The step that computes a value, whose dimensions are in this order."""
        key = (value, order)
        if key not in self._known:
            if len(self._steps) >= Expression.MOST_STEPS:
                raise _NoExpression
            self._known[key] = self._computed(value, order, is_root)
        return self._known[key]

    def _computed(self, value: Any, order: Order, is_root: bool) -> int:
        if str(dtype_of(value)) not in _NAMES:
            raise _NoExpression
        known = _number(value)
        if known is not None:
            return self._put(ExpressionStep("number", number=known))
        made = maker(value)
        name = "" if made is None else made.name.removeprefix("stablehlo.")
        if name == "reshape":
            return self._reshaped(made, order)
        if name == "transpose":
            turned = integers(made, "permutation")
            return self._step(made.operands[0], tuple(turned[dim] for dim in order))
        if name == "broadcast_in_dim":
            return self._repeated(made, order)
        if made is None or made.name in _IN_MEMORY:
            return self._read(value, order)
        found = self._operation(made, name, order)
        if found is None:
            raise _NoExpression
        if str(dtype_of(value)) == "bfloat16" and not is_root and not self._is_rounded(made, name):
            found = self._put(ExpressionStep("round", (found,)))
        return found

    def _operation(self, made: Any, name: str, order: Order) -> int | None:
        """The step of an elementwise operation; None of what is none."""
        operands = list(made.operands)
        if name == "compare":
            return self._comparison(made, order)
        if name == "convert":
            (source,) = operands
            if str(dtype_of(made.results[0])) == "bool" and str(dtype_of(source)) != "bool":
                zero = self._put(ExpressionStep("number", number=0.0))
                return self._put(ExpressionStep("not_equal", (self._step(source, order), zero)))
            return self._step(source, order)
        if name == "reduce_precision":
            bits = [int(made.attributes[key]) for key in ("exponent_bits", "mantissa_bits")]
            source = self._step(operands[0], order)
            return self._put(ExpressionStep("round", (source,))) if bits == [8, 7] else None
        if name == "chlo.erf":
            return self._put(ExpressionStep("erf", (self._step(operands[0], order),)))
        if name not in _COMPUTED:
            return None
        if any(shape_of(item) != shape_of(made.results[0]) for item in operands):
            # The truth of a selection may be one for all elements.
            return None
        operation = "not_equal" if name == "xor" else name
        return self._put(
            ExpressionStep(operation, tuple(self._step(item, order) for item in operands))
        )

    def _comparison(self, made: Any, order: Order) -> int | None:
        if "TOTALORDER" in str(made.attributes["compare_type"]):
            return None
        direction = str(made.attributes["comparison_direction"]).split()[-1].rstrip(">")
        left, right = (self._step(item, order) for item in made.operands)
        if direction in _TURNED:
            return self._put(ExpressionStep(_TURNED[direction], (right, left)))
        return self._put(ExpressionStep(_COMPARED[direction], (left, right)))

    @staticmethod
    def _is_rounded(made: Any, name: str) -> bool:
        """Whether the result of an operation is a number of its narrow type as it is computed."""
        if name == "convert":
            return str(dtype_of(made.operands[0])) != "float32"
        return name in ("abs", "maximum", "minimum", "negate", "reduce_precision", "select")

    def _reshaped(self, made: Any, order: Order) -> int:
        (source,) = made.operands
        if order != tuple(range(len(order))):
            raise _NoExpression
        return self._step(source, tuple(range(len(shape_of(source)))))

    def _repeated(self, made: Any, order: Order) -> int:
        """A value that is repeated along dimensions."""
        (source,) = made.operands
        shape = shape_of(made.results[0])
        dims = integers(made, "broadcast_dimensions")
        sizes = shape_of(source)
        if any(size not in (1, shape[dim]) for size, dim in zip(sizes, dims, strict=True)):
            raise _NoExpression
        kept = [order.index(dim) for dim, size in zip(dims, sizes, strict=True) if size > 1]
        lengths = [shape[dim] for dim in order]
        if kept != sorted(kept):
            raise _NoExpression
        if not kept:
            return self._leaf(source, ExpressionRead(1, 1))
        between = range(kept[0], kept[-1] + 1)
        if math.prod(lengths[at] for at in between) != math.prod(sizes):
            raise _NoExpression
        inner = math.prod(lengths[kept[-1] + 1 :])
        if math.prod(sizes) == self._size:
            return self._step(source, tuple(range(len(sizes))))
        return self._leaf(source, ExpressionRead(inner, math.prod(sizes)))

    def _read(self, value: Any, order: Order) -> int:
        """A value in memory, of as many elements as the results."""
        if order != tuple(range(len(order))):
            raise _NoExpression
        return self._leaf(value, ExpressionRead(1, self._size))

    def _leaf(self, value: Any, read: ExpressionRead) -> int:
        made = maker(value)
        is_there = made is None or made.name in _IN_MEMORY
        if not is_there and read.period * _PARTS > self._size:
            raise _NoExpression
        if len(self._leaves) == Expression.MOST_READS:
            raise _NoExpression
        self._leaves.append(value)
        self._reads.append(read)
        return self._put(ExpressionStep("read", number=len(self._leaves) - 1))

    def _put(self, step: ExpressionStep) -> int:
        self._steps.append(step)
        return len(self._steps) - 1


class _NoExpression(Exception):
    """A value is not made of what expressions have."""


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
