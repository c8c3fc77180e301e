"""Operators of torch by name.

Overloads are looked up when they are needed, so one that is missing breaks nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.autograd import forward_ad

Rule = TypeVar("Rule")

OWN_NAMESPACE = "pjrt_bridge"
"""Of operators that stand for ATen's in graphs; they have ATen's names."""


def operator_name(target: object) -> str | None:
    """`"aten.add.Tensor"` of an operator overload, None for anything else."""
    return str(target) if isinstance(target, OpOverload) else None


def name_of(target: object) -> str:
    """The name by which lowerings are found, for anything that a graph calls."""
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target}"
    name = operator_name(target)
    return str(getattr(target, "__qualname__", target)) if name is None else name


def label(target: object) -> str:
    """The name in messages for anything that a graph calls: the user's own operator's."""
    namespace, dot, name = name_of(target).partition(".")
    # Operators of this package that stand for one of ATen have its name.
    stands = namespace == OWN_NAMESPACE and is_operator(f"aten.{name}")
    return ("aten" if stands else namespace) + dot + name


def operator(name: str) -> OpOverload | None:
    """The overload `"namespace.operator.overload"`, None where torch knows none."""
    found = _find(name)
    return found if isinstance(found, OpOverload) else None


def by_operator(rules: Mapping[str, Rule]) -> dict[OpOverload, Rule]:
    """Rules by overload, of rules by its name as `operator` takes it; without unknown ones."""
    found = {operator(name): rule for name, rule in rules.items()}
    return {op: rule for op, rule in found.items() if op is not None}


def is_operator(name: str) -> bool:
    """Whether torch knows `"namespace.operator"` or `"namespace.operator.overload"`."""
    return _find(name) is not None and name.count(".") > 0


def _find(name: str) -> Any:
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def is_composite(name: str) -> bool:
    """Whether torch always decomposes an operator (by the names of `is_operator`) for a graph."""
    namespace, packet, *overload = name.split(".")
    packet = getattr(getattr(torch.ops, namespace), packet)
    if isinstance(packet, HigherOrderOperator):
        return False
    chosen = overload or [name for name in packet.overloads() if not name.endswith("out")]
    key = "CompositeImplicitAutograd"
    names = (getattr(packet, name).name() for name in chosen)
    return all(
        torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
        for name in names
        # Other overloads are TorchScript's alone, such as `aten::to.prim_dtype`.
        if torch._C._dispatch_has_kernel(name)
    )


def has_host_kernel(op: OpOverload) -> bool:
    """Whether PyTorch can run an operator on the host: some are those of accelerators alone."""
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(op._name, "CPU"))


def are_transforms_active() -> bool:
    """Whether this is within `torch.func.grad`, `torch.vmap` or their like."""
    return bool(torch._C._are_functorch_transforms_active())


def is_forward_mode() -> bool:
    """Whether this is within `torch.func.jvp` or `torch.autograd.forward_ad.dual_level`."""
    return forward_ad._current_level >= 0


def break_graph(reason: str) -> None:
    """Have Dynamo end its graph here; with `fullgraph=True` the reason is an error."""
    torch._dynamo.graph_break(reason)


def is_observed() -> bool:
    """Whether something else than the operator's kernel sees a call on tensors of the host."""
    return bool(
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._autograd._profiler_enabled()
    )
