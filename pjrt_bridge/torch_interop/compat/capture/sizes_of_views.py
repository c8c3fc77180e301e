"""Sizes of views as the program asks for them, where torch finds the same in other words.

Torch calculates the sizes of `x.view(n // 4, 4)` from those of `x`: the second as `n // (n // 4)`,
which is 4 in every call in which the view is possible. What follows would then have a size that
changes, and be padded, or refused, for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import make_contiguous_strides_for
from torch._subclasses import fake_impls

from pjrt_bridge.torch_interop.compat.promises.values import expression

_aten = torch.ops.aten
_VIEWS = (_aten.view.default, _aten._unsafe_view.default)


def keep_sizes_of_views(is_for_us: Callable[[], bool]) -> None:
    """Have views promised with the sizes that they were asked for.

    Args:
        is_for_us: whether what Dynamo traces now is for this backend.
    """
    known: Any = getattr(fake_impls, "op_implementations_dict", {})
    for operator in _VIEWS:
        if operator in known:
            known[operator] = _as_asked(known[operator], is_for_us)


def _as_asked(before: Callable[..., Any], is_for_us: Callable[[], bool]) -> Callable[..., Any]:
    def view(mode: Any, function: Any, a: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        made = before(mode, function, a, size, *args, **kwargs)
        if len(made.shape) != len(size) or not is_for_us():
            return made
        pairs = list(zip(size, made.shape, strict=True))
        asked = [own if type(one) is int and one == -1 else one for one, own in pairs]
        if not any(map(_are_other_words, asked, made.shape)):
            return made
        dense = a.is_contiguous()
        strides = make_contiguous_strides_for(asked) if dense else made.stride()
        return torch.as_strided(made, asked, strides)

    return view


def _are_other_words(asked: Any, found: Any) -> bool:
    """Whether the size of a view is a symbol, or computed of some, in other words than asked."""
    return isinstance(found, torch.SymInt) and bool(expression(asked) != expression(found))
