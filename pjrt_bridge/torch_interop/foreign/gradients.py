"""Gradients of calls of foreign functions, for each way in which torch asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.foreign_functions import ArraySpec, Derivative, find

_CallFunction = Callable[[str, Sequence[torch.Tensor], Sequence[int]], Sequence[torch.Tensor]]


def prepare(
    ctx: Any,
    name: str,
    arguments: Sequence[torch.Tensor],
    sizes: Sequence[int],
    output: Sequence[torch.Tensor],
) -> None:
    """Keep what the gradients of a call need.

    Args:
        ctx: of the call.
        name: of the function.
        arguments: that it was given.
        sizes: that it was given beside them.
        output: what it gave.

    Raises:
        NotImplementedError: the function has no gradients.
    """
    ctx.function, ctx.sizes, ctx.count = name, sizes, len(arguments)
    ctx.differentiable = [_is_inexact(tensor) for tensor in output]
    if compat.is_forward_mode():
        ctx.save_for_forward(*arguments)
    ctx.wanted = [tensor.requires_grad for tensor in arguments]
    if not any(ctx.wanted):
        return
    derivative = find(name).derivative(list(map(ArraySpec.of, arguments)), ctx.wanted)
    ctx.derivative = derivative
    ctx.forms = [(output[at].shape, output[at].dtype) for at in derivative.reads]
    known = [*arguments, *output]
    ctx.save_for_backward(*arguments, *(known[at] for at in derivative.saved))
    ctx.set_materialize_grads(False)


def compute(
    ctx: Any, given: Sequence[torch.Tensor | None], call: _CallFunction
) -> list[torch.Tensor | None]:
    """The gradients of the arguments of a call.

    Args:
        ctx: of the call.
        given: gradients of what it gave; None for zeros.
        call: calls a function.
    """
    derivative: Derivative = ctx.derivative
    # Activation checkpointing computes what was saved again, once for each time it is asked for.
    kept = ctx.saved_tensors
    arguments, saved = kept[: ctx.count], kept[ctx.count :]
    read = []
    for at, (shape, dtype) in zip(derivative.reads, ctx.forms, strict=True):
        gradient = given[at]
        if gradient is None:
            gradient = torch.zeros(shape, dtype=dtype, device=arguments[0].device)
        read.append(gradient)
    if torch.is_grad_enabled():
        # What was saved is no part of gradients that are differentiated again (create_graph).
        found = call(derivative.differentiable.name, [*arguments, *read], ())
    else:
        found = call(derivative.backward.name, [*saved, *read], derivative.sizes)
    supply = iter(found)
    return [next(supply) if wanted else None for wanted in ctx.wanted]


def pushed(
    ctx: Any, tangents: Sequence[torch.Tensor | None], call: _CallFunction
) -> tuple[torch.Tensor | None, ...]:
    """The tangents of what a call gave; None of integers.

    Args:
        ctx: of the call.
        tangents: of the arguments; None for zeros.
        call: calls a function.

    Raises:
        NotImplementedError: the function has no tangents.
    """
    moved = [tangent is not None for tangent in tangents]
    function = find(ctx.function).pushed(moved)
    given = [tangent for tangent in tangents if tangent is not None]
    supply = iter(call(function.name, [*ctx.saved_tensors[: ctx.count], *given], ctx.sizes))
    return tuple(next(supply) if inexact else None for inexact in ctx.differentiable)


def _is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
