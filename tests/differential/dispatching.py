"""What a program does, operator by operator, in eager mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pjrt_bridge.torch_interop.repeated_memory import share_memory
from tests.differential.ir import Program


class Dispatched(TorchDispatchMode):
    """Notes the operators that run.

    Attributes:
        names: of them.
        in_order: one writes into memory that it reads at another place: what it reads depends on
            the order of its elements, of which PyTorch promises nothing.
        resizes: one is given an `out=` of another size.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.in_order = False
        self.resizes = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.add(func.name())
        in_order = False
        if isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable:
            written, read = _tensors(func, args, kwargs or {})
            in_order = any(_meet(one, other) for one in written for other in read)
        result = func(*args, **kwargs or {})
        # PyTorch raises for those that it recognizes.
        self.in_order |= in_order
        return result


def dispatched(program: Program, namespace: Callable[[], dict[str, Any]]) -> Dispatched:
    """Run all calls of a program.

    Args:
        program: the program.
        namespace: gives its functions.
    """
    seen = Dispatched()
    functions = namespace()
    for row in program.calls:
        made = functions["arguments"](*row)
        given = [made[name] for name in program.parameters]
        with warnings.catch_warnings(record=True) as said, suppress(Exception):
            warnings.simplefilter("always")
            with seen:
                functions["f"](*given)
        seen.resizes |= any("was resized" in str(item.message) for item in said)
    return seen


def _tensors(func: Any, args: Any, kwargs: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What an operator writes into, and what it reads."""
    sides: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for place, parameter in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(parameter.name)
        is_written = parameter.alias_info is not None and parameter.alias_info.is_write
        sides[not is_written].extend(_strided(value))
    return sides


def _strided(value: Any) -> Iterator[torch.Tensor]:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel():
            yield leaf


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have memory in common, of which each has other elements in its places."""
    same = (one.shape, one.stride(), one.storage_offset(), one.dtype) == (
        other.shape,
        other.stride(),
        other.storage_offset(),
        other.dtype,
    )
    return not same and share_memory(one, other)
