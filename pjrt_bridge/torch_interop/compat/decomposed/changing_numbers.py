"""Operators with a Python number that differs from call to call, by operators that torch can lift.

Torch makes 0-d tensors of such numbers (a learning rate that a scheduler sets is one) where sums,
products, quotients and comparisons read them. Any other operator that reads one would be compiled
for its value, and again for the next.
"""

from __future__ import annotations

import operator as math_operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from operator import getitem
from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor, fx
from torch._functorch._aot_autograd import graph_compile
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.passes._tensorify_python_scalars import SUPPORTED_OPS

from pjrt_bridge.torch_interop.compat.operators import operator
from pjrt_bridge.torch_interop.compat.promises.values import (
    DATA_DEPENDENT,
    promise,
    storage_identity,
)


def number_decompositions(
    others: Mapping[OpOverload, Callable[..., Any]],
) -> dict[OpOverload, Callable[..., Any]]:
    """The rules of operators that may read such a number.

    Args:
        others: rules for where they read none.
    """
    found = {operator(f"aten.{name}"): rule for name, rule in _RULES.items()}
    return {
        op: _or(rule, others.get(op), _OF_INTEGERS if rule in _TAKING_INTEGERS else (SymFloat,))
        for op, rule in found.items()
        if op is not None
    }


@contextmanager
def numbers_in_expressions() -> Iterator[None]:
    """Have torch lift numbers, while it compiles, that a graph reads in expressions, such as `-n`.

    Torch (2.11) makes tensors of these, too, but then counts a number that is read nowhere by
    itself among those that it could not lift, and compiles a graph for each of its values.
    """
    module: Any = graph_compile
    lift = module.tensorify_python_scalars
    # The table lists functions of Python since torch keeps account of numbers in expressions.
    if math_operator.mul in SUPPORTED_OPS:
        yield
        return
    module.tensorify_python_scalars = partial(_lift, lift)
    try:
        yield
    finally:
        module.tensorify_python_scalars = lift


def _lift(lift: Callable[..., None], module: fx.GraphModule, *others: Any) -> None:
    """Lift numbers, each of which is also read by itself; what reads it is dropped by torch."""
    aten = torch.ops.aten
    for node in module.graph.find_nodes(
        op="call_function", target=aten._local_scalar_dense.default
    ):
        if isinstance(promise(node), SymFloat):
            with module.graph.inserting_after(node):
                reader = module.graph.call_function(aten.mul.Tensor, (node.args[0], node))
            reader.meta["val"] = promise(node.args[0])
    lift(module, *others)


def renew_views(graph: fx.Graph) -> None:
    """Make the promises of views share memory with those of what they are views of.

    Where torch lifted a number, another node took the place of the one that read it. Views of that
    one keep promises that are views of its promise, which no node has any more.
    """
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload) or not node.target.is_view:
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), promise)
        source, view = args[0], promise(node)
        first = view[0] if isinstance(view, (list, tuple)) and view else view
        if not isinstance(source, FakeTensor) or not isinstance(first, FakeTensor):
            continue
        if storage_identity(first) != storage_identity(source):
            with suppress(*DATA_DEPENDENT), source.fake_mode:
                view = node.meta["val"] = node.target(*args, **kwargs)
            for part in node.users:
                if part.target is getitem:
                    part.meta["val"] = view[part.args[1]]


def _or(
    rule: Callable[..., Any],
    other: Callable[..., Any] | None,
    kinds: tuple[type, ...],
) -> Callable[..., Any]:
    def decompose(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(item, kinds) for item in (*args, *kwargs.values())):
            made = rule(*args, **kwargs)
            if made is not NotImplemented:
                return made
        return NotImplemented if other is None else other(*args, **kwargs)

    return decompose


def tensor_of(number: Any, dtype: torch.dtype) -> Tensor:
    """A 0-d tensor of a number, made so that torch can lift the number."""
    made: Tensor = torch.zeros((), dtype=dtype, device="cpu") + number
    return made


def _by_tensors(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """The rule of an operator of a tensor and a number by that of two tensors."""

    def rule(x: Tensor, number: Any) -> Any:
        return function(x, number)

    return rule


def _of_half(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """The rule of an operator of a 0-d tensor of half precision and a number.

    With a 0-d tensor of float32 in the place of the number, the result would be of float32.
    """

    def rule(x: Any, other: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(other, Tensor):
            return NotImplemented
        if x.dim() or x.dtype not in (torch.float16, torch.bfloat16):
            return NotImplemented
        return function(x.reshape(1), other).reshape(())

    return rule


def _sum(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """The rule of a sum or difference, whose second operand is multiplied by `alpha`.

    Torch forgets `alpha` where it lifts a number that is added.
    """

    def rule(x: Any, other: Any, alpha: Any = 1) -> Any:
        if not isinstance(x, Tensor) or isinstance(alpha, bool | complex):
            return NotImplemented
        if isinstance(other, Tensor):
            scaled = isinstance(alpha, SymFloat) and other.dtype.is_floating_point
            return function(x, other * alpha) if scaled else NotImplemented
        if isinstance(alpha, float | SymFloat) and not _is_real(x, other):
            return NotImplemented
        number = other if isinstance(alpha, int) and alpha == 1 else other * alpha
        made = _of_half(function)(x, number)
        return function(x, number) if made is NotImplemented and number is not other else made

    return rule


def _is_real(x: Tensor, number: Any) -> bool:
    """Whether a sum of both is of floating-point or complex numbers."""
    return x.dtype.is_floating_point or x.dtype.is_complex or isinstance(number, float | SymFloat)


def _difference_from(x: Tensor, number: Any, alpha: Any = 1) -> Any:
    """`number - alpha * x`."""
    if x.dtype is torch.bool or isinstance(alpha, bool | complex):
        return NotImplemented
    if not _is_real(x, number):
        return NotImplemented
    exact = x.dtype.is_floating_point or x.dtype.is_complex
    made = x.dtype if exact else torch.get_default_dtype()
    half = made in (torch.float16, torch.bfloat16)
    return (x.to(torch.float32 if half else made) * -alpha + number).to(made)


def _addcmul(x: Tensor, first: Tensor, second: Tensor, *, value: Any = 1) -> Any:
    return x + first * value * second if x.dtype.is_floating_point else NotImplemented


def _addcdiv(x: Tensor, first: Tensor, second: Tensor, *, value: Any = 1) -> Any:
    return x + first * value / second if x.dtype.is_floating_point else NotImplemented


def _lerp(start: Tensor, end: Tensor, weight: Any) -> Any:
    if not start.dtype.is_floating_point:
        return NotImplemented
    wide = torch.float64 if start.dtype is torch.float64 else torch.float32
    first, last, part = start.to(wide), end.to(wide), tensor_of(weight, wide)
    near = first + part * (last - first)
    far = last - (last - first) * (1 - part)
    return torch.where(part.abs() < 0.5, near, far).to(start.dtype)


def _power_of(base: Any, exponent: Tensor) -> Any:
    if exponent.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return torch.pow(tensor_of(base, exponent.dtype), exponent.contiguous())


def _power(x: Tensor, exponent: Any) -> Any:
    if x.dtype.is_complex:
        return NotImplemented
    made = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
    wide = torch.float64 if made is torch.float64 else torch.float32
    base = x.to(wide)
    # ATen compares the number as it is, and rounds it for powers.
    number = tensor_of(exponent, torch.float64)
    power = torch.pow(base, number.to(made).to(wide))
    if made is not torch.float16:
        # Roots of -0.0 and of -inf are no powers; ATen takes none of float16.
        root = torch.where(number == -0.5, base.rsqrt(), power)
        power = torch.where(number == 0.5, base.sqrt(), root)
    return power.to(made)


def _clamp(x: Tensor, min: Any = None, max: Any = None) -> Any:
    limits = [item for item in (min, max) if item is not None]
    if not x.dtype.is_floating_point:
        if x.dtype is torch.bool or not all(isinstance(item, int | SymInt) for item in limits):
            return NotImplemented
        info = torch.iinfo(x.dtype)
        if not all(info.min <= item <= info.max for item in limits):
            return NotImplemented
        return torch.clamp(
            x, *(None if item is None else tensor_of(item, x.dtype) for item in (min, max))
        )
    return torch.clamp(x, _limit(min, x.dtype), _limit(max, x.dtype))


def _limit(number: Any, dtype: torch.dtype) -> Tensor | None:
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    return None if number is None else tensor_of(number, wide).to(dtype)


def _clamp_max(x: Tensor, max: Any) -> Any:
    return _clamp(x, None, max)


def _hardtanh(x: Tensor, min_val: Any = -1, max_val: Any = 1) -> Any:
    return _clamp(x, min_val, max_val)


def _leaky_relu(x: Tensor, negative_slope: Any = 0.01) -> Any:
    return torch.where(x > 0, x, x * negative_slope)


def _elu(x: Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    wide = x if x.dtype is torch.float64 else x.float()
    below = torch.expm1(wide * input_scale) * alpha * scale
    return torch.where(wide < 0, below, wide * scale).to(x.dtype)


def _fill(x: Tensor, value: Any) -> Any:
    return torch.full_like(x, value)


_OF_INTEGERS = (SymFloat, SymInt)
_TAKING_INTEGERS = (_clamp, _clamp_max, _fill)

_RULES: dict[str, Callable[..., Any]] = {
    "add.Scalar": _sum(torch.add),
    "add.Tensor": _sum(torch.add),
    "addcdiv.default": _addcdiv,
    "addcmul.default": _addcmul,
    "clamp.default": _clamp,
    "clamp_max.default": _clamp_max,
    "clamp_min.default": _clamp,
    "div.Scalar": _by_tensors(torch.div),
    "div.Tensor": _of_half(torch.div),
    "elu.default": _elu,
    "fill.Scalar": _fill,
    "hardtanh.default": _hardtanh,
    "leaky_relu.default": _leaky_relu,
    "lerp.Scalar": _lerp,
    "mul.Scalar": _by_tensors(torch.mul),
    "mul.Tensor": _of_half(torch.mul),
    "pow.Scalar": _power_of,
    "pow.Tensor_Scalar": _power,
    "rsub.Scalar": _difference_from,
    "sub.Scalar": _sum(torch.sub),
    "sub.Tensor": _sum(torch.sub),
}
