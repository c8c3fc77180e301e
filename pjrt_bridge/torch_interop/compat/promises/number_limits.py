"""Python numbers that differ from call to call, within the limits that operators set them.

Kernels convert a number to the type that they compute in and raise where that type cannot hold it;
some refuse numbers of one sign. Neither torch's decompositions nor programs with the number as an
argument would. So a graph is traced for the range of numbers that PyTorch takes. Dynamo guards the
range, and a number out of it is a constant of a graph of its own: PyTorch gets that call, and
raises.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import SymFloat, SymInt, fx
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import guard_scalar
from torch.utils import _pytree as pytree

from pjrt_bridge.torch_interop.compat.promises.values import hint

_Refuses = Callable[[OpOverload, Any], bool]

_SYMBOLIC = (SymFloat, SymInt)

_FLOATS = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
_INTEGERS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32),
)

_DIVISIONS = tuple(f"aten::{name}" for name in ("div", "floor_divide", "fmod", "remainder"))
"""Operators of two tensors that may refuse a number for its value, which is zero for integers."""


def with_number_limits(
    table: Mapping[OpOverload, Callable[..., Any]], refused: _Refuses
) -> dict[OpOverload, Callable[..., Any]]:
    """Decompositions, before which the numbers of each operator are held within limits.

    Args:
        table: the decompositions.
        refused: says whether PyTorch refuses an operator with positional and keyword arguments.
    """
    return {
        **table,
        **{op: partial(_within_limits, refused, op, table.get(op)) for op in _taking_numbers()},
    }


def has_numbers(graph: fx.Graph) -> bool:
    """Whether a graph of Dynamo reads numbers, sizes among them, that differ from call to call."""
    return any(isinstance(node.meta.get("example_value"), _SYMBOLIC) for node in graph.nodes)


@cache
def _taking_numbers() -> tuple[OpOverload, ...]:
    """The operators of ATen that convert a number, and change nothing."""
    # Others are made of these; for those that write, tracing takes one that does not.
    schemas = (
        item
        for item in torch._C._jit_get_all_schemas()
        if item.name.startswith("aten::") and not item.is_mutable and _positions_in(item)
    )
    names = (item.name + (item.overload_name and f".{item.overload_name}") for item in schemas)
    known = (name for name in names if torch._C._dispatch_has_kernel(name))
    return tuple(op for op in map(_overload, known) if not op._can_decompose())


def _overload(name: str) -> OpOverload:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    found: OpOverload = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return found


def _positions_in(schema: Any) -> dict[str, int]:
    """Of the arguments that are numbers or, in divisions, may be one in a tensor's place."""
    kinds = ("number", "Optional[number]", *(("Tensor",) if schema.name in _DIVISIONS else ()))
    return {item.name: at for at, item in enumerate(schema.arguments) if str(item.type) in kinds}


@cache
def _positions(op: OpOverload) -> Mapping[str, int]:
    return _positions_in(op._schema)


def _within_limits(
    refused: _Refuses,
    op: OpOverload,
    rule: Callable[..., Any] | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    for name, at in _positions(op).items():
        number = args[at] if at < len(args) else kwargs.get(name)
        if isinstance(number, _SYMBOLIC) and hint(number) is not None:
            refuses = partial(_refuses, refused, op, args, kwargs, at, name)
            if not _is_within_limits(number, refuses):
                args, kwargs = _with_number(args, kwargs, at, name, guard_scalar(number))
    return NotImplemented if rule is None else rule(*args, **kwargs)


def _refuses(
    refused: _Refuses, op: OpOverload, args: Any, kwargs: Any, at: int, name: str, value: Any
) -> bool:
    call = _with_number(args, kwargs, at, name, value)
    return refused(op, pytree.tree_map_only(SymFloat, hint, call))


def _with_number(args: Any, kwargs: Any, at: int, name: str, value: Any) -> Any:
    """The arguments of a call with another number."""
    if at < len(args):
        return (*args[:at], value, *args[at + 1 :]), kwargs
    return args, {**kwargs, name: value}


def _is_within_limits(number: Any, refuses: Callable[[Any], bool]) -> bool:
    """Whether a number is one that PyTorch takes, which is assumed of all that come."""
    known = hint(number)
    if refuses(known):
        return False
    candidates = _candidates(int if isinstance(known, int) else float)
    at = bisect_left(candidates, known)
    above, below = candidates[at:], candidates[:at][::-1]
    highest, lowest = _last_accepted(above, known, refuses), _last_accepted(below, known, refuses)
    return all(
        (highest is None or bool(number <= highest), lowest is None or bool(number >= lowest))
    )


def _last_accepted(candidates: list[Any], known: Any, refuses: Callable[[Any], bool]) -> Any:
    """The last number before one that is refused; None where none is.

    Args:
        candidates: numbers, each further from the known one than the one before.
        known: a number that is taken.
        refuses: says whether PyTorch refuses a number.
    """
    for candidate in candidates:
        if refuses(candidate):
            return known
        known = candidate
    return None


@cache
def _candidates(kind: type[int] | type[float]) -> list[Any]:
    """Numbers in order that some type holds as its limit, or takes for 0; and those around 0."""
    limits = [
        *(kind(getattr(torch.iinfo(dtype), end)) for dtype in _INTEGERS for end in ("min", "max")),
        *(kind(getattr(torch.finfo(dtype), end)) for dtype in _FLOATS for end in ("min", "max")),
    ]
    # Numbers wrap around in some conversions to integers: a multiple of 256 is 0 for 8 bits.
    limits += [kind(2 ** torch.iinfo(dtype).bits) for dtype in _INTEGERS]
    wrapping = [-item for item in limits]
    range_of_kind = torch.iinfo(torch.int64) if kind is int else torch.finfo(torch.float64)
    return sorted(
        item
        for item in {*limits, *wrapping, kind(-1), kind(0), kind(1)}
        if range_of_kind.min <= item <= range_of_kind.max
    )
