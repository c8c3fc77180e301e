"""Arguments of a traced call, made of its template, and its results in one list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pjrt_bridge.torch_interop.compat import OpOverload
from pjrt_bridge.torch_interop.compat.devices import third_party_device
from pjrt_bridge.torch_interop.passes.lift_scalars import tensor_of
from pjrt_bridge.torch_interop.resident.calls.calls import Leaf, NumberArgument, OperatorSchema
from pjrt_bridge.torch_interop.resident.calls.float_arguments import counterpart
from pjrt_bridge.torch_interop.resident.calls.moving_views import read_at, write_at


def built(value: Any, given: Sequence[Any], numbers: Sequence[Any]) -> Any:
    """The arguments of a template, as views of what is given."""
    if isinstance(value, Leaf):
        base = given[value.place]
        if value.geometry is None:
            return base
        if value.offset is not None:
            return read_at(base, value.geometry, numbers[value.offset])
        _, shape, strides, offset = value.geometry
        return base.as_strided(shape, strides, offset)
    if isinstance(value, NumberArgument):
        return numbers[value.place]
    if isinstance(value, list):
        return [built(item, given, numbers) for item in value]
    if isinstance(value, dict):
        return {name: built(item, given, numbers) for name, item in value.items()}
    return value


def write_back(template: Any, built: Any, given: Sequence[Any], numbers: Sequence[Any]) -> None:
    """Have storages hold what was written into views at offsets that are numbers.

    Args:
        template: an argument that an operator writes into.
        built: what was made of it.
        given: see `built`.
        numbers: see `built`.
    """
    if isinstance(template, list):
        for one, other in zip(template, built, strict=True):
            write_back(one, other, given, numbers)
    elif isinstance(template, Leaf) and template.offset is not None:
        assert template.geometry is not None
        write_at(given[template.place], built, template.geometry, numbers[template.offset])


def with_tensors(op: OpOverload, args: list[Any]) -> list[Any]:
    """The arguments with tensors where the schema has them: torch hands on some as numbers.

    Such a number is of the type that it and the first tensor are promoted to: a tensor without
    dimensions would else make another type of one that has none either, as no number does.
    """
    if third_party_device.takes_numbers(op):
        return args
    tensor = next((value for value in args if isinstance(value, torch.Tensor)), None)
    return [
        _filled(value, tensor)
        if isinstance(value, (bool, int, float, complex)) and str(item.type) == "Tensor"
        else value
        for value, item in zip(args, op._schema.arguments, strict=False)
    ]


def taking_symbols(
    op: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rules: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any] | None:
    """What takes symbolic numbers in the place of an operator; None where that takes them.

    Torch hands on some numbers as tensors, where there is an overload for numbers; and its
    operators take the values of floats alone, where their decompositions take symbols.

    Args:
        op: the operator.
        args: positional arguments.
        kwargs: keyword arguments.
        rules: decompositions.
    """
    own = counterpart(op)
    if own is not None and any(map(_is_symbol, (*args, *kwargs.values()))):
        return own
    for value, item in zip(args, op._schema.arguments, strict=False):
        if not _is_symbol(value):
            continue
        if str(item.type) == "Tensor" and not third_party_device.takes_numbers(op):
            packet: Callable[..., Any] = op.overloadpacket
            return packet
        if str(item.type) in _FLOATS:
            return rules.get(op)
    return None


def _is_symbol(value: Any) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat)


_FLOATS = ("float", "Optional[float]")
"""Types of arguments, by their names, for which torch's operators take the values of symbols."""


def _filled(value: complex, beside: torch.Tensor | None) -> torch.Tensor:
    if beside is None:
        return torch.tensor(value, device="cpu")
    return tensor_of(value, torch.result_type(beside, value))


def flattened(form: OperatorSchema, found: Any) -> tuple[list[Any], list[Any]]:
    """Where each result is among the outputs of the graph, and these outputs."""
    results = found if len(form.returns) > 1 else [found]
    layout: list[Any] = []
    outputs: list[Any] = []

    def add(item: Any) -> Any:
        if isinstance(item, (list, tuple)):
            return [add(one) for one in item]
        outputs.append(item)
        return len(outputs) - 1

    for where, item in zip(form.returns, results if form.returns else (), strict=True):
        layout.append(None if where is not None else add(item))
    return layout, outputs
