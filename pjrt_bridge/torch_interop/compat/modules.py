"""Parameters and hooks of `nn.Module`: swapping what two parameters hold, removing hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def swap_parameters(parameter: nn.Parameter, other: nn.Parameter) -> None:
    """Have a parameter hold what another one holds, and the other way round.

    It stays the same object, with the attributes that users gave it. So weak references, of the
    layers of recurrent networks and of compiled graphs, do no harm; torch refuses these.

    Raises:
        RuntimeError: autograd holds it, or they are of classes that torch cannot exchange.
    """
    if type(parameter) is not type(other) or parameter._use_count() > 1:  # type: ignore[attr-defined]
        torch.utils.swap_tensors(parameter, other)  # type: ignore[no-untyped-call]
    else:
        torch._C._swap_tensor_impl(parameter, other)


def remove_forward_hooks(module: nn.Module, chosen: Callable[[Callable[..., Any]], bool]) -> None:
    """Remove those hooks of a module, of before and after its forward function, that are chosen."""
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key in [key for key, hook in hooks.items() if chosen(hook)]:
            del hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)
