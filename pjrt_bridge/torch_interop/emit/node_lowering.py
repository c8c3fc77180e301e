"""One node of an ATen graph, or a graph within a node, as StableHLO."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError, UnsupportedDtype
from pjrt_bridge.registry.hooks import raised_in
from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit.substitute_sizes import substitute_sizes
from pjrt_bridge.torch_interop.lowering.context import Context, MemoryOrder
from pjrt_bridge.torch_interop.lowering.registry import Lowering, NoLowering, NotLowerable
from pjrt_bridge.torch_interop.nodes import label

Lookup = Callable[[str], Lowering | None]
"""Finds the lowering of an operator for one plugin."""


def lower(
    builder: Builder,
    lookup: Lookup,
    node: fx.Node,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    outputs: Sequence[TensorType | None],
    input_order: MemoryOrder,
) -> Value | tuple[Value | None, ...]:
    """Emit one node; its value, or its values where the operator returns several.

    Raises:
        NotLowerable: there is no lowering, it refused, or its result has another type than torch
        promises.
    """
    if _gives_nothing(node, outputs):
        empty = [_empty(builder, item) for item in outputs]
        return tuple(empty) if isinstance(compat.promise(node), (tuple, list)) else empty[0]
    lowering = lookup(compat.name_of(node.target))
    if lowering is None:
        raise NoLowering("no lowering to StableHLO exists for this operator")
    context = Context(
        builder,
        outputs,
        input_order=input_order,
        inline=partial(inline, builder, lookup),
        same_operator_count=partial(_same_operator_count, node),
    )
    try:
        result = lowering(context, *_numbers_alone(builder, node, args), **kwargs)
    except NotLowerable:
        raise
    except ProgramError as error:
        raise NotLowerable(f"its lowering emits an invalid operation: {error}") from error
    except Exception as error:
        # An error in a lowering must only put its node on the host, not fail the model.
        where = raised_in(error)
        raise NotLowerable(
            f"its lowering failed: {type(error).__name__}: {error}{where}"
        ) from error
    several = isinstance(compat.promise(node), (tuple, list))
    values = tuple(result) if several and isinstance(result, Sequence) else (result,)
    _check_promise(values, outputs)
    return values if several else values[0]  # type: ignore[return-value]


def _numbers_alone(builder: Builder, node: fx.Node, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a node; without a tensor, numbers in the places of tensors become some.

    Autograd's formulas lead there: the gradient of `x * 2j` conjugates the number. PyTorch takes it
    for a tensor without dimensions, of the widest type of its kind.
    """
    if not isinstance(node.target, compat.OpOverload) or any(
        isinstance(argument, Value) for argument in args
    ):
        return args
    return [
        builder.full((), argument, dtypes.from_torch(_WIDEST[type(argument)]))
        if type(argument) in _WIDEST and isinstance(expected.type, torch.TensorType)
        else argument
        for argument, expected in zip(args, node.target._schema.arguments, strict=False)
    ]


_WIDEST = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


def _gives_nothing(node: fx.Node, outputs: Sequence[TensorType | None]) -> bool:
    """Whether all results of an operator of ATen are empty, so that it need not be lowered."""
    if not isinstance(node.target, compat.OpOverload) or node.target.namespace != "aten":
        return False
    if not outputs or any(item is None or item.size for item in outputs):
        return False
    # With symbolic sizes other calls may have elements.
    return not compat.is_symbolic(compat.promise(node))


def _empty(builder: Builder, promised: TensorType | None) -> Value:
    assert promised is not None
    return builder.full(promised.shape, 0, promised.dtype)


def _same_operator_count(node: fx.Node) -> int:
    return len(node.graph.find_nodes(op=node.op, target=node.target, sort=False))


def inline(
    builder: Builder, lookup: Lookup, module: fx.GraphModule, arguments: Sequence[Any]
) -> tuple[Any, ...]:
    """Emit a graph that belongs to a higher-order operator, where it is called.

    Args:
        builder: emits, into the region that is being written.
        lookup: finds the lowerings of its operators.
        module: a functional ATen graph.
        arguments: values, and numbers, for its placeholders.

    Returns:
        Its outputs: values, and what is none.

    Raises:
        NotLowerable: a node in it cannot be lowered; the reason names it.
    """
    if any(compat.is_symbolic(compat.promise(node)) for node in module.graph.nodes):
        module = substitute_sizes(module, [_example(argument) for argument in arguments])
    values: dict[fx.Node, Any] = {}
    given = iter(arguments)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "get_attr":
            values[node] = compat.promise(node)
            if isinstance(values[node], torch.Tensor):
                raise NotLowerable("a graph within it holds a tensor that is no argument")
        elif node.op == "output":
            outputs = compat.substitute(node.args[0], values)
            return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
        elif node.target is operator.getitem:
            source, index = compat.substitute(node.args, values)
            values[node] = source[index]
        else:
            values[node] = _within(builder, lookup, node, values)
    raise NotLowerable("a graph within it has no output")


def _within(builder: Builder, lookup: Lookup, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    args, kwargs = compat.substitute((node.args, node.kwargs), values)
    try:
        outputs = tensor_types(compat.promise(node))
        return lower(builder, lookup, node, args, kwargs, outputs, order_of_input(node))
    except (NotLowerable, UnsupportedDtype) as error:
        raise NotLowerable(f"{label(node)} within it: {error}") from error


def _example(argument: Any) -> Any:
    """An uninitialized tensor of a value's type; only its type is read."""
    if not isinstance(argument, Value):
        return argument
    name = argument.dtype.torch
    assert name is not None
    return torch.empty(argument.shape, dtype=getattr(torch, name), device="cpu")


def _check_promise(values: Sequence[Any], outputs: Sequence[TensorType | None]) -> None:
    for index, (value, promised) in enumerate(zip(values, outputs, strict=False)):
        found = value.type if isinstance(value, Value) else value
        if promised is not None and found != promised:
            raise NotLowerable(
                f"its lowering gives {found} for output {index}, torch promises {promised}"
            )
    if len(values) != len(outputs):
        raise NotLowerable(f"its lowering gives {len(values)} outputs, not {len(outputs)}")


def tensor_types(promise: Any) -> tuple[TensorType | None, ...]:
    """Types of a node's outputs; None for what is no tensor.

    Raises:
        NotLowerable: symbolic sizes, or a tensor that is not strided.
        UnsupportedDtype: an element type without a PJRT counterpart.
    """
    several = promise if isinstance(promise, (tuple, list)) else (promise,)
    return tuple(tensor_type(item) for item in several)


def tensor_type(promise: Any) -> TensorType | None:
    """Type of one output; see `tensor_types`."""
    if compat.is_symbolic(promise):
        raise NotLowerable("its shape is only known in a call")
    if not isinstance(promise, torch.Tensor):
        return None
    if promise.layout is not torch.strided:
        raise NotLowerable(f"a tensor of layout {promise.layout} has no StableHLO type")
    if promise.device.type != "cpu":
        raise NotLowerable(f"a tensor on device {promise.device} cannot be shared with the plugin")
    return TensorType(tuple(promise.shape), dtypes.from_torch(promise.dtype))


def order_of_input(node: fx.Node) -> MemoryOrder:
    """How the first tensor that the node reads lies in memory."""
    first = node.all_input_nodes[:1]
    return memory_order(compat.promise(first[0])) if first else MemoryOrder.WHOLE


def memory_order(promise: Any) -> MemoryOrder:
    """How a tensor lies in memory; anything else than a tensor counts as row-major."""
    if not isinstance(promise, torch.Tensor):
        return MemoryOrder.WHOLE
    known: torch.Tensor = compat.stand_in(promise)
    if not known.is_contiguous():
        return MemoryOrder.OTHER
    offset = promise.storage_offset()
    moved = compat.is_symbolic(offset) or offset != 0
    return MemoryOrder.PART if moved else MemoryOrder.WHOLE
