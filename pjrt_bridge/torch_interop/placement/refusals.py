"""Calls that PyTorch's kernels refuse although fake tensors, and the lowerings, accept them.

Fake tensors check shapes, and the kernels behind them check more: an extreme of no elements,
combinations of element types, element types without a kernel. PyTorch has no table of that. So an
operator is run once, in PyTorch, on small tensors of a node's element types; a node that is refused
there stays with PyTorch, which raises its own error in the call.

The sizes are the node's where that is cheap: its tensors are small, or no result has elements.
Otherwise all large sizes are replaced, equal ones by equal ones; where fake tensors do not accept
the replaced sizes, nothing is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx.node import map_aggregate

from pjrt_bridge.errors import UnsupportedDtype
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.emit.node_lowering import tensor_type
from pjrt_bridge.torch_interop.lowering import registry
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from pjrt_bridge.torch_interop.placement.trials import (
    LARGEST_SIZE,
    MOST_ELEMENTS,
    Trial,
    TrialGenerator,
    error_of_trial,
    types_in,
)

_BLOCK = 16
"""The largest power of two of which replaced sizes stay multiples."""

_USUAL = (frozenset({"float32"}), frozenset({"float64"}))
"""Element types for which every kernel exists: where all tensors have one of these, and none is
empty, nothing is tried at replaced sizes."""

_VALUES_MATTER = frozenset(
    (
        # Its lengths must sum up to the size of the data.
        "aten.segment_reduce.default",
        # Its numbers must sum up to the size of the result.
        "aten.repeat_interleave.Tensor",
        # Its offsets must end with the number of rows.
        "aten._jagged_to_padded_dense_forward.default",
        "aten._padded_dense_to_jagged_forward.default",
    )
)
"""Operators that refuse some values: only errors about element types are refusals of these."""

_AS_PROMISED = frozenset(
    ("aten._softmax_backward_data.default", "aten._log_softmax_backward_data.default")
)
"""Backward operators that take a result of which fake tensors promise the type that it has."""

_OF_NUMBERS: dict[str, bool] = {
    "aten.full.default": True,
    "aten.linspace.default": False,
    "aten.logspace.default": False,
    "aten.scalar_tensor.default": False,
}
"""Operators that make a tensor of numbers, which its type may not hold, and whether they are given
a shape first."""

_RANGE = "aten.arange."
"""The beginning of the names of operators that make a range of numbers."""

_DRAWN_BY: dict[str, compat.OpOverload] = {
    f"aten.{name}": found
    for name, of_generator in (
        ("rand.default", "rand.generator"),
        ("randint.default", "randint.generator"),
        ("randint.low", "randint.low_generator"),
        ("randn.default", "randn.generator"),
        ("randperm.default", "randperm.generator"),
    )
    if (found := compat.operator(f"aten.{of_generator}")) is not None
}
"""By operator that draws numbers without reading any the one that is given a generator."""

_STEPS = 2
"""Where those that are not are given the number of elements, unless they make one."""

_LARGEST = torch.finfo(torch.float32).max


def refusal(
    target: object, arguments: Any, outputs: Any, *, of_types_alone: bool = False
) -> str | None:
    """The error of PyTorch for a call; None where it raises none or where that is unknown.

    Args:
        target: what is called.
        arguments: positional and keyword ones, a `TensorType` in place of each tensor.
        outputs: the types of the results.
        of_types_alone: the sizes are examples, which do not count.
    """
    # A view has no kernel that could refuse. A backward operator takes results of the forward one,
    # of which fake tensors may promise other element types than the kernels return.
    if (
        not isinstance(target, compat.OpOverload)
        or target.namespace != "aten"
        or target.is_view
        or not compat.has_host_kernel(target)
        or ("backward" in str(target) and str(target) not in _AS_PROMISED)
    ):
        return None
    if torch.Tag.nondeterministic_seeded in target.tags:
        target = _DRAWN_BY.get(str(target), target)
        if all(item.name != "generator" for item in target._schema.arguments):
            return None
        # The trial must not change the state of torch's generator.
        args, kwargs = arguments
        arguments = (args, {**kwargs, "generator": TrialGenerator()})
    error = _refusal(target, _with_numbers(target, arguments), outputs, of_types_alone)
    values_matter = str(target) in _VALUES_MATTER or _writes_with_mask(target, arguments)
    if error is not None and values_matter and "not implemented for" not in error:
        return None
    return error


def _with_numbers(target: compat.OpOverload, arguments: Any) -> Any:
    """The arguments, with a number for each 0-d tensor that the lowering takes in its place."""
    taken = registry.taken_as_values(str(target))
    if not taken:
        return arguments

    def number(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [number(item) for item in value]
        if not isinstance(value, TensorType):
            return value
        return 1.0 if value.dtype.is_float else 1

    args, kwargs = arguments
    names = [item.name for item in target._schema.arguments]
    return (
        tuple(
            number(item) if name in taken else item for name, item in zip(names, args, strict=False)
        ),
        {name: number(item) if name in taken else item for name, item in kwargs.items()},
    )


def _writes_with_mask(target: compat.OpOverload, arguments: Any) -> bool:
    """Whether it depends on values of a mask how many values there have to be."""
    if str(target) not in ("aten.index_put.default", "aten._unsafe_index_put.default"):
        return False
    return any(item.dtype.is_bool for item in types_in(arguments[0][1]))


def _refusal(
    target: compat.OpOverload, arguments: Any, outputs: Any, of_types_alone: bool
) -> str | None:
    types = types_in(arguments)
    if not types:
        return _refusal_of_numbers(target, arguments)
    if any(item.dtype.torch is None for item in types):
        return None
    results = types_in(outputs)
    small = sum(item.size for item in (*types, *results)) <= MOST_ELEMENTS
    nothing = bool(results) and not any(item.size for item in results)
    promised = (small or nothing) and not of_types_alone
    if not promised:
        usual = frozenset(item.dtype.name for item in types) in _USUAL
        huge = any(map(_is_huge, _numbers(arguments)))
        if usual and not huge and all(item.size for item in types):
            return None
        if not small:
            arguments = _replaced(arguments, _sizes(types))
    return error_of_trial(Trial(target, arguments, promised))


def _refusal_of_numbers(target: compat.OpOverload, arguments: Any) -> str | None:
    """The error for a call that has no tensor among its arguments."""
    name = compat.operator_name(target) or ""
    args, kwargs = arguments
    if name.startswith(_RANGE):
        # Fake tensors check the numbers, and the kernel the type.
        call = ((0, 1, 1)[-len(args) :], {"dtype": kwargs.get("dtype")})
        return error_of_trial(Trial(target, call, promised=True))
    if target in _DRAWN_BY.values():
        if not all(isinstance(item, (int, list, tuple)) for item in args):
            return None
        few = tuple(_few(item, permuted=len(args) == 1) for item in args)
        drawn = {key: kwargs.get(key) for key in ("dtype", "generator")}
        return error_of_trial(Trial(target, (few, drawn), promised=True))
    if name not in _OF_NUMBERS:
        return None
    shape: tuple[Any, ...] = ()
    if _OF_NUMBERS[name]:
        # PyTorch rounds the number of a single element, and refuses it for more.
        args, shape = args[1:], ((min(math.prod(args[0]), 2),),)
    elif len(args) > _STEPS and args[_STEPS] > MOST_ELEMENTS:
        return None
    if not all(isinstance(item, (int, float, complex)) for item in args):
        return None
    call = ((*shape, *args), {"dtype": kwargs.get("dtype")})
    return error_of_trial(Trial(target, call, promised=True))


def _few(argument: Any, *, permuted: bool) -> Any:
    """An argument of an operator that draws numbers, with which it draws few.

    Args:
        argument: a shape, a limit, or how many numbers are permuted.
        permuted: the latter, where no shape is given.
    """
    if isinstance(argument, (list, tuple)):
        return (min(math.prod(argument), 2),)
    # More than half precision and integers of 16 bits count.
    return min(argument, 1 << 16) if permuted else argument


def _numbers(arguments: Any) -> list[complex]:
    """The numbers of Python among arguments."""
    found: list[complex] = []
    map_aggregate(
        arguments,
        lambda item: found.append(item) if isinstance(item, (int, float, complex)) else None,
    )
    return found


def _is_huge(number: complex) -> bool:
    """Whether float32 cannot hold a number that is finite."""
    return _LARGEST < abs(number) < math.inf


def refused(target: compat.OpOverload, arguments: Any) -> bool:
    """Whether PyTorch refuses a call whose arguments hold fake tensors."""
    return _refused(target, arguments, of_types_alone=False)


def refused_for_types(target: compat.OpOverload, arguments: Any) -> bool:
    """Whether PyTorch refuses a call of any sizes; its arguments hold fake tensors."""
    return _refused(target, arguments, of_types_alone=True)


def _refused(target: compat.OpOverload, arguments: Any, *, of_types_alone: bool) -> bool:
    try:
        described = _described(arguments)
    except (NotLowerable, UnsupportedDtype, ValueError):
        return False
    return refusal(target, described, (), of_types_alone=of_types_alone) is not None


def _described(arguments: Any) -> Any:
    """Arguments with types in place of fake tensors, and examples in place of symbolic sizes."""

    def described(item: Any) -> Any:
        item = compat.stand_in(item) if compat.is_symbolic(item) else item
        return tensor_type(item) or item

    return map_aggregate(arguments, described)


def _sizes(types: list[TensorType]) -> dict[int, int]:
    """A small size for each large one, in the same order.

    Each is a multiple of the same power of two: kernels of quantized products read whole blocks,
    and end the process where a size is none.
    """
    found: dict[int, int] = {}
    last = LARGEST_SIZE
    for size in sorted({size for item in types for size in item.shape if size > LARGEST_SIZE}):
        block = min(size & -size, _BLOCK)
        last = found[size] = (last // block + 1) * block
    return found


def _replaced(arguments: Any, sizes: Mapping[int, int]) -> Any:
    """Arguments with other sizes, also among their numbers."""

    def replaced(item: Any) -> Any:
        if isinstance(item, TensorType):
            return TensorType(tuple(sizes.get(n, n) for n in item.shape), item.dtype)
        return sizes.get(item, item) if type(item) is int else item

    return map_aggregate(arguments, replaced)
