"""Decompositions of fused optimizer steps (`torch._fused_adam_` and its kind), tensor by tensor.

Each is computed as ATen's CPU kernel does it: half precision in float32, with one rounding where a
tensor is written. Those that write into their arguments are replaced before AOTAutograd sees them,
because functionalization fails where one of their lists is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.decomposed.changing_numbers import tensor_of
from pjrt_bridge.torch_interop.compat.operators import by_operator

_StepNumber = float | Tensor
_Tensors = Sequence[Tensor]


def fused_step_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each functional fused step its decomposition."""
    return by_operator(
        {
            f"aten.{name}.{overload}": partial(_new, rule)
            for name, rule in _RULES.items()
            for overload in ("default", "tensor_lr")
        }
    )


def traceable_step(op: OpOverload) -> Callable[..., Any] | None:
    """A function that can be traced, for a fused step that writes; None for other operators."""
    packet = getattr(op, "_opname", "").removesuffix("_")
    rule = _RULES.get(packet) if op.namespace == "aten" else None
    return None if rule is None or packet == op._opname else partial(_write, rule)


def replace_fused_steps(graph: fx.Graph) -> None:
    """Put functions that AOTAutograd can trace in the place of fused steps, in a Dynamo graph."""
    written = {getattr(torch, f"{name}_", None): rule for name, rule in _RULES.items()}
    for node in graph.nodes:
        rule = written.get(node.target) if node.op == "call_function" else None
        if rule is not None:
            node.target = partial(_write, rule)


def _new(rule: Callable[..., Any], *lists: Any, **numbers: Any) -> tuple[list[Tensor], ...]:
    """The results of the step, which share no memory with its arguments."""
    given = {id(tensor) for tensors in lists for tensor in tensors}
    return tuple(
        [made.clone() if id(made) in given else made for made in tensors]
        for tensors in rule(*lists, **numbers)
    )


def _write(rule: Callable[..., Any], *lists: Any, **numbers: Any) -> None:
    """The step, which writes into its lists of tensors."""
    for tensors, made in zip(lists, rule(*lists, **numbers), strict=False):
        for old, new in zip(tensors, made, strict=True):
            if old is not new:
                old.copy_(new)


def _adam(
    decoupled: bool,
    params: _Tensors,
    grads: _Tensors,
    exp_avgs: _Tensors,
    exp_avg_sqs: _Tensors,
    max_exp_avg_sqs: _Tensors,
    state_steps: _Tensors,
    *,
    lr: _StepNumber,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> tuple[list[Tensor], ...]:
    """Adam, or AdamW where the weight decay is decoupled; see `torch.optim`."""
    made: list[list[Tensor]] = [[], [], [], [], []]
    for index, old in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)):
        param, grad, average, square = map(_widened, old)
        largest = _widened(max_exp_avg_sqs[index]) if amsgrad else None
        grad = _unscaled(grad, grad_scale)
        scaled = grad
        if maximize:
            grad = -grad
        if weight_decay and decoupled:
            param = param * (1 - lr * weight_decay)
        elif weight_decay:
            grad = grad + param * weight_decay
        step = state_steps[index].to(param.dtype)
        average = average + (1 - beta1) * (grad - average)
        square = square * beta2 + (1 - beta2) * grad * grad
        largest = None if largest is None else torch.maximum(largest, square)
        deviation = (square if largest is None else largest).sqrt()
        denominator = deviation / _correction(beta2, step).sqrt() + eps
        param = param - lr / _correction(beta1, step) * average / denominator
        new = [param, scaled, average, square] + ([] if largest is None else [largest])
        tensors = [*old, *([] if largest is None else [max_exp_avg_sqs[index]])]
        for results, before, after in zip(made, tensors, new, strict=False):
            results.append(_written(before, after, found_inf))
    return (*made[:4], made[4] if amsgrad else list(max_exp_avg_sqs))


def _correction(beta: float, step: Tensor) -> Tensor:
    """`1 - beta ** step`, without the cancellation that a beta close to 1 would bring."""
    logarithm = tensor_of(beta, torch.float64).log().to(step.dtype)
    return -torch.expm1(step * logarithm)


def _sgd(
    params: _Tensors,
    grads: _Tensors,
    momentum_buffer_list: _Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: _StepNumber,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> tuple[list[Tensor], ...]:
    """Stochastic gradient descent; see `torch.optim.SGD`."""
    made: list[list[Tensor]] = [[], [], []]
    for index, old in enumerate(zip(params, grads, strict=True)):
        param, grad = map(_widened, old)
        grad = _unscaled(grad, grad_scale)
        new, tensors = [param, grad], [*old]
        if maximize:
            grad = -grad
        if weight_decay:
            grad = grad + param * weight_decay
        if momentum:
            tensors.append(momentum_buffer_list[index])
            buffer = _widened(tensors[-1])
            buffer = grad if is_first_step else buffer * momentum + grad * (1 - dampening)
            new.append(buffer)
            grad = grad + buffer * momentum if nesterov else buffer
        new[0] = param - grad * lr
        for results, before, after in zip(made, tensors, new, strict=False):
            results.append(_written(before, after, found_inf))
    return made[0], made[1], made[2] if momentum else list(momentum_buffer_list)


def _adagrad(
    params: _Tensors,
    grads: _Tensors,
    state_sums: _Tensors,
    state_steps: _Tensors,
    *,
    lr: _StepNumber,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> tuple[list[Tensor], ...]:
    """Adagrad; see `torch.optim.Adagrad`."""
    made: list[list[Tensor]] = [[], [], []]
    for *old, count in zip(params, grads, state_sums, state_steps, strict=True):
        param, grad, total = map(_widened, old)
        grad = _unscaled(grad, grad_scale)
        scaled = grad
        if maximize:
            grad = -grad
        if weight_decay:
            grad = grad + param * weight_decay
        rate = lr / (1 + (count.to(param.dtype) - 1) * lr_decay)
        total = total + grad * grad
        param = param - rate * grad / (total.sqrt() + eps)
        for results, before, after in zip(made, old, (param, scaled, total), strict=True):
            results.append(_written(before, after, found_inf))
    # One overload says that it writes the counts, too; no kernel does.
    steps = [] if isinstance(lr, Tensor) else [list(state_steps)]
    return (*made, *steps)


def _widened(tensor: Tensor) -> Tensor:
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.float() if half else tensor


def _unscaled(grad: Tensor, scale: Tensor | None) -> Tensor:
    return grad if scale is None else grad / scale.to(grad.dtype)


def _written(before: Tensor, after: Tensor, found_inf: Tensor | None) -> Tensor:
    """The new value of a tensor: the old one where a gradient was infinite."""
    after = after.to(before.dtype)
    return after if found_inf is None else torch.where(found_inf == 1, before, after)


_RULES: dict[str, Callable[..., Any]] = {
    "_fused_adam": partial(_adam, False),
    "_fused_adamw": partial(_adam, True),
    "_fused_sgd": _sgd,
    "_fused_adagrad": _adagrad,
}


# -- the steps of torch.optim ----------------------------------------------------------------------

_OURS = frozenset(("decoupled", "is_first_step"))
_FLAGS = frozenset(
    ("capturable", "decoupled_weight_decay", "differentiable", "has_complex", "has_sparse_grad")
)
"""Arguments that torch.optim's steps take and operators do not."""


def traced_step(plain: Callable[..., Any]) -> Callable[..., None] | None:
    """What Dynamo is to trace in the place of a fused step of torch.optim; None of an unknown one.

    An operator for the whole step would be compiled for each learning rate.

    Args:
        plain: such as `torch.optim.adam._fused_adam`.
    """
    rules: dict[str, Callable[..., Any]] = {
        "_fused_adam": _adam,
        "_fused_sgd": _sgd,
        "_fused_adagrad": _adagrad,
    }
    rule = rules[plain.__name__]
    theirs, ours = (frozenset(signature(function).parameters) for function in (plain, rule))
    if theirs - _FLAGS != ours - _OURS:
        return None

    def step(*lists: Any, **given: Any) -> None:
        numbers = {name: value for name, value in given.items() if name not in _FLAGS}
        chosen = rule
        if rule is _adam:
            chosen = partial(_adam, given["decoupled_weight_decay"])
        if rule is _sgd:
            buffers = lists[-1]
            first = bool(given["momentum"]) and all(buffer is None for buffer in buffers)
            numbers["is_first_step"] = first
            if first:
                buffers[:] = [torch.zeros_like(grad) for grad in lists[1]]
            if not given["momentum"]:
                lists = (*lists[:-1], [])
        else:
            torch._foreach_add_(lists[-1], 1)
        _write(chosen, *lists, **numbers)
        if rule is not _sgd and given["found_inf"] is not None:
            torch._foreach_sub_(lists[-1], [given["found_inf"]] * len(lists[-1]))

    return step
