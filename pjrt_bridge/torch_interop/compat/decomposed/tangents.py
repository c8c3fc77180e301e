"""Operators with gradients, or without, that refuse tangents instead of losing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch._library.utils import fill_defaults
from torch._ops import OpOverload
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.utils import _pytree as pytree

from pjrt_bridge.torch_interop.compat.operators import is_forward_mode

_NO_TANGENTS = (
    "found an argument with a tangent (torch.func.jvp, jacfwd, a dual level), and it has no rule "
    "for tangents; compute with gradients (torch.autograd.grad)"
)

_kept: list[torch.library.Library] = []
"""A registration ends with its library."""

GradientFunction = Callable[..., Any]


def register_gradients(
    op: OpOverload,
    backward: GradientFunction | None = None,
    setup: GradientFunction | None = None,
) -> None:
    """Tell torch the gradients of an operator, also those within `torch.func.grad` and its like.

    With `torch.library.register_autograd` of torch 2.13, and without any gradients, tangents become
    zeros without a word where no argument requires a gradient; here they raise NotImplementedError.
    It also refuses `torch.func`.

    Args:
        op: the operator; takes and gives no lists of tensors.
        backward: see `torch.library.register_autograd`; None: to ask for gradients is an error.
        setup: see there.
    """
    differentiated = _function_of(op, backward, setup)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if is_forward_mode() and any(map(_has_tangent, pytree.tree_leaves((args, kwargs)))):
            raise NotImplementedError(f"{op}: {_NO_TANGENTS}")
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            with enable_single_level_autograd_function():
                return differentiated.apply(keys, kwargs, *args)
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keys & torch._C._after_autograd_keyset, *args, **kwargs)

    library = torch.library.Library(op.namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    implement: Callable[..., None] = library.impl
    implement(op.__name__.removesuffix(".default"), kernel, "Autograd", with_keyset=True)
    _kept.append(library)


def _function_of(
    op: OpOverload, backward: GradientFunction | None, setup: GradientFunction | None
) -> Any:
    """The operator as a function of autograd, of the keys and arguments of a kernel.

    It is of one level of `torch.func`'s transforms, as kernels of autograd are: the dispatcher has
    taken the levels above away, and those below follow.
    """

    def forward(ctx: Any, keys: Any, kwargs: dict[str, Any], *args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            with torch.enable_grad():
                # The levels below take part in differentiation, this one does not.
                result = op.redispatch(keys & torch._C._after_autograd_keyset, *args, **kwargs)
            if setup is not None:
                # The dispatcher leaves out arguments that are equal to their defaults.
                inputs, named = fill_defaults(op._schema, args, kwargs)  # type: ignore[no-untyped-call]
                extra = {"keyword_only_inputs": named} if named else {}
                setup(ctx=ctx, inputs=inputs, output=result, **extra)
        return result

    def gradients(ctx: Any, *given: Any) -> Any:
        if backward is None:
            raise RuntimeError(
                f"{op}: found an argument that requires a gradient, and it has no rule for "
                "gradients"
            )
        needed = ctx.needs_input_grad
        ctx.needs_input_grad = needed[2:]
        try:
            found = backward(ctx, *given)
        finally:
            ctx.needs_input_grad = needed
        return None, None, *(found if isinstance(found, tuple) else (found,))

    members = {"forward": staticmethod(forward), "backward": staticmethod(gradients)}
    name = op.__name__.replace(".", "_")
    return type(f"GradientsOf_{name}", (_SingleLevelFunction,), members)


def _has_tangent(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    parts = forward_ad.unpack_dual(value)  # type: ignore[no-untyped-call]
    return parts.tangent is not None
