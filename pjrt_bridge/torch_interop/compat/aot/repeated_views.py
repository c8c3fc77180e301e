"""Results that are views of arguments, where AOTAutograd does not find the place that they view.

AOTAutograd (torch 2.13) makes such a result anew: it repeats the views on the argument, or takes
`as_strided` of it with the result's strides. Both go wrong without a word:

- Of arguments in one memory, one of which the graph writes into, it makes one tensor. It repeats
  the views of another argument on that tensor, which begins elsewhere and has other dimensions.
  A view that the tensor does not have may end the process.
- Strides count elements of another size than the argument's where the result has another type.

What a graph gives lies in the argument's memory already. Where what was made does not lie in the
same place, that is the result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch._aot_autograd import runtime_wrappers


def keep_places_of_views() -> None:
    """Have AOTAutograd keep the places of results, of any backend whose graphs give views."""
    wrappers: Any = runtime_wrappers
    before = getattr(wrappers, "gen_alias_from_base", None)
    if before is None:
        return

    def aliased(argument: Any, result: Any, grad: bool, *args: Any, **kwargs: Any) -> Any:
        if not _is_view(argument, result):
            return before(argument, result, grad, *args, **kwargs)
        return _at_its_place(before, argument, result, grad, *args, **kwargs)

    wrappers.gen_alias_from_base = aliased


_calls = threading.local()


def of_merged_arguments(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph whose arguments AOTAutograd made one tensor of: no view is repeated."""

    def call(*args: Any) -> Any:
        before = getattr(_calls, "merged", False)
        _calls.merged = True
        try:
            return compiled(*args)
        finally:
            _calls.merged = before

    return call


def _at_its_place(
    repeat: Callable[..., Any], argument: Any, result: Any, grad: bool, *args: Any, **kwargs: Any
) -> Any:
    made = None
    if not getattr(_calls, "merged", False):
        try:
            made = repeat(argument, result, grad, *args, **kwargs)
        except (AssertionError, IndexError, RuntimeError):
            # The views are not those of this tensor.
            made = None
    if made is not None and _is_same_place(made, result):
        return made
    if argument.dtype is not result.dtype or result.is_conj() or result.is_neg():
        return result
    place = argument.as_strided(result.size(), result.stride(), result.storage_offset())
    return place if grad or not place.requires_grad else place.detach()


def _is_view(argument: Any, result: Any) -> bool:
    """Whether both are tensors with memory, and it is the same."""
    return (
        type(result) is torch.Tensor
        and isinstance(argument, torch.Tensor)
        and result.layout is argument.layout is torch.strided
        and not torch._is_functional_tensor(argument)
        and argument.untyped_storage()._cdata == result.untyped_storage()._cdata
    )


def _is_same_place(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.dtype is other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.storage_offset() == other.storage_offset()
    )
