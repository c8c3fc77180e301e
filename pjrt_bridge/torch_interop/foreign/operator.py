"""The operator `pjrt_functions::call`: its results for fake tensors, its gradients, its vmap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.foreign import gradients
from pjrt_bridge.torch_interop.foreign.eager import kernel, results_of_plain
from pjrt_bridge.torch_interop.foreign_functions import NAMESPACE, ArraySpec, find
from pjrt_bridge.torch_interop.tensors import torch_dtype

_NAME = f"{NAMESPACE}::call"

_F = TypeVar("_F", bound=Callable[..., Any])

at_compile_time: Callable[[_F], _F] = torch.compiler.assume_constant_result
"""Of functions whose results Dynamo takes as constants: it runs them while it traces."""

torch.library.define(
    _NAME,
    "(str function, Tensor[] arguments, SymInt[] sizes) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_OPERATOR: compat.OpOverload = torch.ops.pjrt_functions.call.default
torch.library.impl(_NAME, "CPU")(kernel(_OPERATOR))


def call(
    function: str, arguments: Sequence[torch.Tensor], sizes: Sequence[int] = ()
) -> Sequence[torch.Tensor]:
    """The results of a foreign function; behind them may be what its gradients need.

    Args:
        function: its name.
        arguments: one or more tensors.
        sizes: see `ForeignFunction.results`.
    """
    if not sizes and not torch.compiler.is_compiling():
        found = results_of_plain(_OPERATOR, function, arguments)
        if found is not None:
            return found
    wanted = torch.is_grad_enabled() and [tensor.requires_grad for tensor in arguments]
    if wanted and any(wanted):
        function = saving(function, *wanted)
        if compat.are_transforms_active() or compat.is_forward_mode():
            return transformed(function, sizes, arguments)
        return _dispatched(function, arguments, sizes)
    if compat.is_forward_mode():
        # An operator with a list would lose the tangents of its tensors.
        return transformed(function, sizes, arguments)
    return _dispatched(function, arguments, sizes)


def _dispatched(
    function: str, arguments: Sequence[torch.Tensor], sizes: Sequence[int]
) -> Sequence[torch.Tensor]:
    found: list[torch.Tensor]
    found = torch.ops.pjrt_functions.call(function, list(arguments), list(sizes))
    return found


@at_compile_time
def saving(function: str, *wanted: bool) -> str:
    """The name of the function that also gives what gradients need."""
    return find(function).saving(wanted).name


def _results(
    function: str, arguments: Sequence[torch.Tensor], sizes: Sequence[Any]
) -> list[torch.Tensor]:
    device = arguments[0].device if arguments else torch.device("cpu")
    specs = find(function).results(list(map(ArraySpec.of, arguments)), sizes)
    return [torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device=device) for spec in specs]


torch.library.register_fake(_NAME)(_results)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Sequence[torch.Tensor]) -> None:
    name, arguments, sizes = inputs
    # Torch takes an empty list for one of tensors.
    ctx.of_sizes = None if sizes else []
    gradients.prepare(ctx, name, arguments, sizes, output)


def _backward(ctx: Any, given: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    return None, gradients.compute(ctx, given, call), ctx.of_sizes


torch.library.register_autograd(_NAME, _backward, setup_context=_setup)


def transformed(
    function: str, sizes: Sequence[int], arguments: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The results within `torch.func.grad` and its like, which take no operator with a list."""
    if torch.compiler.is_compiling() and compat.is_forward_mode():
        # Dynamo leaves out the tangents of an autograd.Function.
        compat.break_graph("tangents of foreign functions are computed in eager")
    apply: Callable[..., tuple[torch.Tensor, ...]] = _Transformed.apply
    return apply(function, tuple(sizes), *arguments)


class _Transformed(torch.autograd.Function):
    """The operator in the form that transformations of functions take."""

    @staticmethod
    def forward(function: str, sizes: tuple[int, ...], *arguments: torch.Tensor) -> Any:
        """The results."""
        return tuple(torch.ops.pjrt_functions.call(function, list(arguments), list(sizes)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what gradients need."""
        gradients.prepare(ctx, inputs[0], inputs[2:], inputs[1], output)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> Any:
        """Gradients of the arguments."""
        return None, None, *gradients.compute(ctx, given, call)

    @staticmethod
    def jvp(ctx: Any, _name: None, _sizes: None, *tangents: torch.Tensor | None) -> Any:
        """Tangents of the results."""
        return gradients.pushed(ctx, tangents, call)

    @staticmethod
    def vmap(
        info: Any, dimensions: tuple[Any, ...], function: str, sizes: Any, *arguments: Any
    ) -> tuple[Any, Any]:
        """The results for each row."""
        mapped = find(function).mapped(tuple(dimensions[2:]))
        found = tuple(call(mapped.name, arguments, sizes))
        return found, (0,) * len(found)


def _mapped(
    info: Any, dimensions: tuple[Any, ...], function: str, arguments: Any, sizes: Any
) -> tuple[Sequence[torch.Tensor], list[int]]:
    mapped = find(function).mapped(tuple(dimensions[1]))
    found = call(mapped.name, arguments, sizes)
    return found, [0] * len(found)


torch.library.register_vmap(_NAME)(_mapped)
