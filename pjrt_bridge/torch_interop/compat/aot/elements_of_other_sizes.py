"""Results that read the memory of an argument as elements of another size.

AOTAutograd (torch 2.13) makes a result that is a view of an argument anew. Where a size of the view
is a symbol it takes `as_strided` of the argument with the result's strides, and `view(dtype)` of
that. The strides count elements of another size then, and it raises, or reads elsewhere. What the
graph gave lies in the argument's memory and has its type already: here that is the result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch._aot_autograd import runtime_wrappers


def keep_elements_of_other_sizes() -> None:
    """Have AOTAutograd keep such results, of any backend whose graphs give views."""
    wrappers: Any = runtime_wrappers
    before = wrappers.gen_alias_from_base

    def aliased(argument: Any, result: Any, grad: bool, views: Any = None, **options: Any) -> Any:
        if _is_reinterpreted(argument, result) and not _is_repeated(views):
            return result
        return before(argument, result, grad, views, **options)

    wrappers.gen_alias_from_base = aliased


def _is_reinterpreted(argument: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether a result lies in an argument's memory, with elements of another size."""
    if argument.dtype is result.dtype or argument.itemsize == result.itemsize:
        return False
    # Of complex numbers and their parts AOTAutograd makes the right views.
    pair = sorted((argument, result), key=lambda tensor: tensor.itemsize)
    is_of_parts = [item.is_complex() for item in pair] == [False, True]
    if is_of_parts and pair[0].itemsize * 2 == pair[1].itemsize:
        return False
    return bool(argument.untyped_storage()._cdata == result.untyped_storage()._cdata)


def _is_repeated(views: Any) -> bool:
    """Whether AOTAutograd repeats the views one by one."""
    if views is None:
        return False
    return not any(view.has_symbolic_inputs for view in views.sequence)
