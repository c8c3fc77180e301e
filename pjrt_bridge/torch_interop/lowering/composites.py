"""Composites: what a user marked, and operators that a target has as composites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.composing import compose
from pjrt_bridge.stablehlo.composites import Composite
from pjrt_bridge.torch_interop import compat, schemas
from pjrt_bridge.torch_interop.composites import CALL, decoded, of_operator
from pjrt_bridge.torch_interop.lowering.context import Context, OptionalValues
from pjrt_bridge.torch_interop.lowering.registry import Lowering, NotLowerable, lowering


@lowering(compat.name_of(CALL))
def composite_call(c: Context, graph: Any, text: str, *arguments: Any) -> tuple[Value, ...]:
    """A function that was marked as one operation."""

    def decomposition(operands: Sequence[Value]) -> tuple[Value, ...]:
        supply = iter(operands)
        given = [next(supply) if isinstance(item, Value) else item for item in arguments]
        outputs = c.inline(graph, given)
        if not all(isinstance(item, Value) for item in outputs):
            raise NotLowerable("a composite gives something else than tensors")
        return outputs

    operands = [item for item in arguments if isinstance(item, Value)]
    return _composed(c, decoded(text), operands, decomposition)


def as_composite(name: str, own: Lowering) -> Lowering:
    """The lowering of an operator, as a composite where the kernels take that.

    Args:
        name: of the operator.
        own: its lowering, which is the decomposition.
    """
    overload = compat.operator(name)
    if overload is None:
        return own

    def lower(c: Context, *args: Any, **kwargs: Any) -> Value | OptionalValues:
        bound = schemas.bind(overload, args, kwargs)
        found = of_operator(overload, bound, lambda value: isinstance(value, Value))
        if found is None or not c.kernels.takes(found[0]):
            return own(c, *args, **kwargs)  # type: ignore[return-value]

        def decomposition(values: Sequence[Value]) -> tuple[Value, ...]:
            new = dict(zip(found[1], values, strict=True))
            by_place = [new.get(name, item) for name, item in zip(bound, args, strict=False)]
            by_name = {name: new.get(name, item) for name, item in kwargs.items()}
            result = own(c, *by_place, **by_name)
            several = (result,) if isinstance(result, Value) else result
            return tuple(value for value in several if value is not None)

        values = iter(_composed(c, found[0], list(found[1].values()), decomposition))
        results = tuple(None if item is None else next(values) for item in c.outputs)
        first = results[0]
        return first if first is not None and schemas.gives_one_tensor(overload) else results

    return lower


def _composed(
    c: Context, composite: Composite, operands: list[Value], decomposition: Any
) -> tuple[Value, ...]:
    results = [item for item in c.outputs if item is not None]
    return compose(c.kernels, c.b, composite, operands, decomposition, results)
