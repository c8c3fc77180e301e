"""Promised values: fake tensors, symbolic sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    statically_known_true,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy.functions import FloorDiv

from pjrt_bridge.torch_interop.compat.operators import operator
from pjrt_bridge.torch_interop.compat.promises.graphs import graph_attribute
from pjrt_bridge.torch_interop.compat.promises.size_expressions import (
    divided,
    is_never_negative,
)

DATA_DEPENDENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)
"""What tracing raises for an operator whose output shape or number depends on data."""


def promise(node: fx.Node) -> Any:
    """The promise of a node's result: fake tensors with shape, dtype and strides, or numbers."""
    if node.op == "get_attr":
        return graph_attribute(node.graph.owning_module, str(node.target))
    return node.meta.get("val")


def is_symbolic(value: object) -> bool:
    """Whether a promise depends on a size or a number that is only known in a call."""
    if isinstance(value, (tuple, list)):
        return any(map(is_symbolic, value))
    if isinstance(value, torch.Tensor):
        numbers = (*value.shape, *value.stride(), value.storage_offset())
        return any(isinstance(number, torch.SymInt) for number in numbers)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def hint(value: Any) -> Any:
    """The number that a symbol had when it was made; nothing is assumed of it. Else the value."""
    is_number = isinstance(value, torch.SymFloat | torch.SymInt)
    return value.node.hint if is_number else value


def hint_of_float(value: Any) -> Any:
    """The same of symbols of floats alone."""
    return hint(value) if isinstance(value, torch.SymFloat) else value


def is_always(condition: Any) -> bool:
    """Whether a comparison of a graph's numbers is known to hold in every call."""
    return bool(statically_known_true(condition))


def is_ragged(value: object) -> bool:
    """Whether a size is that of a nested tensor's ragged dimension: a name for many sizes."""
    return isinstance(value, torch.SymInt) and value.node.is_nested_int()


_USUAL_SIZE = 5040  # Divisible by all that is likely: the graph may say that a size is.
_SMALL_SIZE = 60  # For tensors of so many dimensions that those of usual sizes cannot exist.


def stand_in(value: Any) -> Any:
    """A promise with sizes as a call could bring them: what lowers for one size does for others.

    Raises:
        ValueError: a size that cannot be computed, a number that is no size, or sizes that do not
            go together (negative, or of a tensor too large to exist).
    """
    if isinstance(value, (tuple, list)):
        return tuple(map(stand_in, value))
    if isinstance(value, torch.SymInt):
        return _size_of(value, {})
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        raise ValueError(f"{value} is no size")
    if isinstance(value, torch.Tensor) and is_symbolic(value):
        with suppress(ValueError):
            return _stand_in(value, {})
        return _stand_in(value, dict.fromkeys(symbols_of_sizes(value), _SMALL_SIZE))
    return value


def stand_in_with_elements(value: torch.Tensor) -> torch.Tensor:
    """A `stand_in` of a tensor by itself, not empty if that is possible.

    Where all symbols stand for one number, a difference of two is 0, and a tensor without elements
    does not say in which order its dimensions lie.

    Raises:
        ValueError: as `stand_in` does.
    """
    known = (*value.shape, *value.stride())
    symbols = sorted({item for size in known for item in _symbols(size)}, key=str)
    falling = {symbol: _USUAL_SIZE // (at + 1) for at, symbol in enumerate(symbols)}
    rising = dict(zip(symbols, reversed(falling.values()), strict=True))
    for usual in ({}, falling, rising):
        with suppress(ValueError):
            found = _stand_in(value, usual)
            if found.numel():
                return found
    return stand_in(value)  # type: ignore[no-any-return]


def _stand_in(value: torch.Tensor, usual: Mapping[Any, int]) -> torch.Tensor:
    shape, strides = (
        [_size_of(size, usual) for size in sizes] for sizes in (value.shape, value.stride())
    )
    try:
        with real_tensors(), FakeTensorMode():
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
    except (RuntimeError, TypeError) as error:  # A TypeError of a stride beyond 64 bits.
        raise ValueError(f"no tensor has the shape {shape} and strides {strides}") from error


def _symbols(size: Any) -> Any:
    return size.node.expr.free_symbols if isinstance(size, torch.SymInt) else ()


def _size_of(size: Any, usual: Mapping[Any, int]) -> int:
    """A size as a call could bring it.

    Args:
        size: perhaps symbolic.
        usual: what symbols stand for; others for `_USUAL_SIZE`.
    """
    if is_ragged(size):
        raise ValueError(f"{size} stands for the sizes of a ragged dimension")
    if not isinstance(size, torch.SymInt):
        return int(size)
    values = {}
    for symbol in _symbols(size):
        bounds = size.node.shape_env.var_to_range[symbol]
        wanted = usual.get(symbol, _USUAL_SIZE)
        values[symbol] = int(max(bounds.lower, min(bounds.upper, wanted)))
    return int(size.node.expr.subs(values))


def expression(value: Any) -> Any:
    """The sympy expression of a symbolic number; anything else as it is.

    Torch leaves quotients such as `s**2 // s` as they are.
    """
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    found, following = value.node.expr, _FOLLOWING.get()
    found = found.xreplace(following) if following else found
    return divided(found) if found.has(FloorDiv) else found


_FOLLOWING: ContextVar[Mapping[Any, Any] | None] = ContextVar("symbols that follow", default=None)


@contextmanager
def following(symbols: Mapping[Any, Any]) -> Iterator[None]:
    """Have `expression` write symbols as what they follow from."""
    token = _FOLLOWING.set(symbols)
    try:
        yield
    finally:
        _FOLLOWING.reset(token)


def symbols(value: Any) -> frozenset[Any]:
    """The symbols that a number is calculated from."""
    return frozenset(getattr(expression(value), "free_symbols", ()))


def symbols_of_sizes(value: Any) -> frozenset[Any]:
    """The symbols that a promise's sizes, strides and offsets are calculated from."""
    if isinstance(value, (tuple, list)):
        return frozenset().union(*map(symbols_of_sizes, value))
    if not isinstance(value, torch.Tensor):
        return frozenset()
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    return frozenset().union(*map(symbols, numbers))


def evaluate(value: Any, symbols: Mapping[Any, int]) -> Any:
    """A symbolic number with these values of its symbols."""
    found = expression(value)
    for symbolic, kind in ((torch.SymBool, bool), (torch.SymInt, int), (torch.SymFloat, float)):
        if isinstance(value, symbolic):
            return kind(found.subs(symbols))
    return found


def least(size: int | torch.SymInt) -> int:
    """A number that a size is never below."""
    if not isinstance(size, torch.SymInt):
        return size
    found = size.node.shape_env.var_to_range.get(size.node.expr)
    return 0 if found is None else int(max(found.lower, 0))


def storage_identity(promise: torch.Tensor) -> int | None:
    """Equal for promises that share memory; None where a tensor has no memory of its own kind."""
    if promise.layout is not torch.strided:
        return None
    try:
        return int(promise.untyped_storage()._cdata)
    except NotImplementedError:
        # Within torch.vmap and its like, where Dynamo keeps tensors of theirs.
        return None


def is_dense(promise: torch.Tensor) -> bool:
    """Whether elements lie next to each other, in any order of dimensions, whatever the sizes are.

    Strides may be arguments of the call, so these are compared as expressions.
    """
    sizes, strides = map(expression, promise.shape), map(expression, promise.stride())
    left = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    step: Any = 1
    while left:
        found = next((each for each in left if each[1] == step), None)
        if found is None:
            return False
        left.remove(found)
        step *= found[0]
    return True


def promise_of_call(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The promise of a call's results, computed on tensors without memory."""
    with FakeTensorMode() as mode, without_autocast():
        faked = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (tuple(args), dict(kwargs)))
        return op(*faked[0], **faked[1])


def insert_call(graph: fx.Graph, name: str, *args: Any, **kwargs: Any) -> fx.Node:
    """Insert a call of an operator, by its full name, with the promise of its result.

    Args:
        graph: where nodes are inserted at the moment.
        name: such as "aten.sub.Tensor".
        *args: nodes, of which one is a tensor at least, and numbers.
        **kwargs: as the operator takes them.
    """
    overload = operator(name)
    assert overload is not None
    made = graph.call_function(overload, args, kwargs)
    given, named = fx.map_arg((args, kwargs), promise)
    made.meta["val"] = overload(*given, **named)
    return made


def fake_scalar(graph: fx.Graph, dtype: torch.dtype) -> torch.Tensor:
    """A promise of a 0-d tensor, for a node of a graph."""
    promises = (node.meta.get("val") for node in graph.nodes)
    modes = (item.fake_mode for item in promises if isinstance(item, FakeTensor))
    with next(modes, None) or FakeTensorMode():
        return torch.empty((), dtype=dtype, device="cpu")


def fakes(*, symbolic: bool = True) -> FakeTensorMode:
    """A mode in which tensors have shapes but no memory.

    Args:
        symbolic: sizes that depend on data are symbols; otherwise their operators raise one of
            `DATA_DEPENDENT`.
    """
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv() if symbolic else None)


def real_tensors() -> AbstractContextManager[Any]:
    """Operations inside see the values of tensors, also while AOTAutograd compiles."""
    return unset_fake_temporarily()


def without_autocast() -> AbstractContextManager[None]:
    """Operators inside compute in the types that they are given, on devices of any type.

    For what runs or compiles a traced graph: the graph has the casts of the code that was traced,
    and the state of the thread that calls it is none of its inputs.
    """
    found: AbstractContextManager[None] = torch._C._DisableAutocast()
    return found


@contextmanager
def untraced() -> Iterator[None]:
    """Operators inside run as they are: they are not traced, converted or differentiated."""
    with _disable_current_modes(), without_autocast(), torch.no_grad():
        yield


def symbol_ranges(value: Any) -> dict[Any, Any]:
    """The limits of the symbols that a promise's sizes, or a number, are calculated from."""
    if isinstance(value, (tuple, list)):
        return {symbol: limits for item in value for symbol, limits in symbol_ranges(item).items()}
    if isinstance(value, torch.Tensor):
        return symbol_ranges((*value.shape, *value.stride(), value.storage_offset()))
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return {}
    known = value.node.shape_env.var_to_range
    return {symbol: known[symbol] for symbol in symbols(value)}


def sign(number: Any) -> int | None:
    """-1 where a number is negative in all calls of a graph, 1 where in none; None otherwise."""
    if statically_known_true(number >= 0) or is_never_negative(expression(number)):
        return 1
    return -1 if statically_known_true(number < 0) else None
