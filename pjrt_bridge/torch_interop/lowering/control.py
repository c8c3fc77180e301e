"""Control flow: `torch.cond`, `while_loop`, `scan`, `map`, and calls of marked subgraphs.

Their graphs are emitted into the regions of one StableHLO operation. Outputs that are None, such as
gradients that are not needed, stay None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT64, Context, OptionalValues
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering


@lowering("higher_order.cond")
def cond(
    context: Context, predicate: Any, then: Any, otherwise: Any, operands: Sequence[Any]
) -> OptionalValues:
    """One branch runs; the predicate is a bool, or a bool tensor of one element."""
    if not isinstance(predicate, Value):
        return context.inline(then if predicate else otherwise, operands)
    given: list[OptionalValues] = []

    def branch(graph: Any) -> Callable[[], tuple[Value, ...]]:
        def body() -> tuple[Value, ...]:
            given.append(_values(context.inline(graph, operands)))
            return tuple(value for value in given[-1] if value is not None)

        return body

    chosen = context.b.if_(context.b.reshape(predicate, ()), branch(then), branch(otherwise))
    there, elsewhere = ([value is not None for value in outputs] for outputs in given)
    if there != elsewhere:
        raise NotLowerable("one branch gives a tensor where the other gives None")
    supply = iter(chosen)
    return tuple(next(supply) if present else None for present in there)


@lowering("higher_order.while_loop")
def while_loop(
    context: Context,
    condition: Any,
    body: Any,
    carried: Sequence[Any],
    others: Sequence[Any],
) -> OptionalValues:
    """Repeats the body while the condition holds; it is evaluated before each iteration."""
    _require_tensors(carried, "its loop carries a number")

    def holds(values: tuple[Value, ...]) -> Value:
        (found,) = _values(context.inline(condition, (*values, *others)))
        if found is None:
            raise NotLowerable("its condition is no tensor")
        return context.b.reshape(found, ())

    def turn(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return _tensors(context.inline(body, (*values, *others)))

    return context.b.while_(tuple(carried), holds, turn)


@lowering("higher_order.scan")
def scan(
    context: Context,
    combine: Any,
    init: Sequence[Any],
    xs: Sequence[Any],
    others: Sequence[Any] = (),
) -> OptionalValues:
    """`carry, y = combine(carry, x)` over the first dimension of `xs`, first to last.

    Returns the last carry, then every y, stacked.
    """
    _require_tensors((*init, *xs), "it carries, or runs over, a number")

    def step(carry: tuple[Value, ...], elements: tuple[Value, ...]) -> tuple[Value, ...]:
        return _tensors(context.inline(combine, (*carry, *elements, *others)))

    return _over_rows(context, step, tuple(init), tuple(xs))


@lowering("higher_order.map_impl")
def map_impl(
    context: Context, function: Any, xs: Sequence[Any], others: Sequence[Any] = ()
) -> OptionalValues:
    """A function applied to each slice along the first dimension of `xs`; its results stacked."""
    _require_tensors(xs, "it runs over a number")
    present: list[bool] = []

    def step(_: tuple[Value, ...], elements: tuple[Value, ...]) -> tuple[Value, ...]:
        outputs = _values(context.inline(function, (*elements, *others)))
        present[:] = [value is not None for value in outputs]
        return tuple(value for value in outputs if value is not None)

    supply = iter(_over_rows(context, step, (), tuple(xs)))
    return tuple(
        next(supply) if there else None for there in present or [True] * len(context.outputs)
    )


@lowering("higher_order.invoke_subgraph")
def invoke_subgraph(
    context: Context, graph: Any, identifier: Any, *operands: Any
) -> OptionalValues:
    """A subgraph that was marked to be compiled once; here it is part of the program."""
    return context.inline(graph, operands)


def _over_rows(
    context: Context,
    step: Callable[[tuple[Value, ...], tuple[Value, ...]], tuple[Value, ...]],
    init: tuple[Value, ...],
    xs: tuple[Value, ...],
) -> tuple[Value, ...]:
    """The last carry and the stacked results of a step over the rows of `xs`."""
    b = context.b
    count = len(init)
    length = xs[0].shape[0]
    zero, one = b.full((), 0, INT64), b.full((), 1, INT64)
    promised = [output for output in context.outputs[count:] if output is not None]
    stacks = tuple(b.full(output.shape, 0, output.dtype) for output in promised)

    if not length:
        return (*init, *stacks)

    def at(position: Value, rank: int) -> list[Value]:
        return [position, *[zero] * (rank - 1)]

    def turn(values: tuple[Value, ...]) -> tuple[Value, ...]:
        position, carry, done = values[0], values[1 : 1 + count], values[1 + count :]
        rows = tuple(
            b.reshape(b.dynamic_slice(x, at(position, x.rank), (1, *x.shape[1:])), x.shape[1:])
            for x in xs
        )
        found = step(carry, rows)
        made = tuple(
            b.dynamic_update_slice(stack, b.reshape(row, (1, *row.shape)), at(position, stack.rank))
            for stack, row in zip(done, found[count:], strict=True)
        )
        return (b.add(position, one), *found[:count], *made)

    def more(values: tuple[Value, ...]) -> Value:
        return b.compare(values[0], b.full((), length, INT64), "LT")

    return b.while_((zero, *init, *stacks), more, turn)[1:]


def _values(outputs: Sequence[Any]) -> OptionalValues:
    """Outputs of a graph, where each is a tensor or None."""
    for output in outputs:
        if output is not None and not isinstance(output, Value):
            raise NotLowerable(f"a graph within it gives the number {output}")
    return tuple(outputs)


def _tensors(outputs: Sequence[Any]) -> tuple[Value, ...]:
    """Outputs of a graph, where each is a tensor."""
    if any(output is None for output in outputs):
        raise NotLowerable("a graph within it gives None")
    return tuple(value for value in _values(outputs) if value is not None)


def _require_tensors(items: Sequence[Any], reason: str) -> None:
    if not all(isinstance(item, Value) for item in items):
        raise NotLowerable(reason)
