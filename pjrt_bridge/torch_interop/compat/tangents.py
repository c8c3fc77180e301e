"""Operators with gradients, or without, that refuse tangents instead of losing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.autograd import Info, make_autograd_impl
from torch._ops import OpOverload
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from pjrt_bridge.torch_interop.compat.operators import is_forward_mode

_NO_TANGENTS = (
    "found an argument with a tangent (torch.func.jvp, jacfwd, a dual level), and it has no rule "
    "for tangents; compute with gradients (torch.autograd.grad)"
)

_kept: list[torch.library.Library] = []
"""A registration ends with its library."""


def register_gradients(
    op: OpOverload,
    backward: Callable[..., Any] | None = None,
    setup: Callable[..., None] | None = None,
) -> None:
    """Tell torch the gradients of an operator.

    With `torch.library.register_autograd` of torch 2.13, and without any gradients, tangents become
    zeros without a word where no argument requires a gradient; here they raise NotImplementedError.

    Args:
        op: the operator.
        backward: see `torch.library.register_autograd`; None: to ask for gradients is an error.
        setup: see there.
    """
    usual = make_autograd_impl(op, Info(backward, setup))

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if is_forward_mode() and any(map(_has_tangent, pytree.tree_leaves((args, kwargs)))):
            raise NotImplementedError(f"{op}: {_NO_TANGENTS}")
        return usual(keys, *args, **kwargs)

    library = torch.library.Library(op.namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    implement: Callable[..., None] = library.impl
    implement(op.__name__.removesuffix(".default"), kernel, "Autograd", with_keyset=True)
    _kept.append(library)


def _has_tangent(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    parts = forward_ad.unpack_dual(value)  # type: ignore[no-untyped-call]
    return parts.tangent is not None
