"""What becomes of an operator overload before, or when, a graph reaches the bridge."""

from __future__ import annotations

from pathlib import Path

import torch

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.lowering import registry

NEEDED = Path(__file__).with_name("model_operators.txt")
"""Operators that models need, and how many models; written by `tests.coverage.needed`."""

LOWERED = "lowered"
REASONS = {
    "decomposed": "torch decomposes it before a backend gets it",
    "functionalized": "torch puts an operator without side effects in its place",
    "data": "its result's shape, or its number, depends on data: PyTorch runs it between segments",
    "missing": "no lowering exists: PyTorch runs it between segments",
}


def core() -> dict[str, str]:
    """Every overload that torch tags as core, with `lowered` or a key of `REASONS`."""
    return {name: fate(op) for name, op in sorted(_overloads().items()) if _is_core(op)}


def needed_by_models() -> dict[str, int]:
    """Operators that models need after core decompositions, and how many models do."""
    pairs = [line.split() for line in NEEDED.read_text().splitlines()[1:]]
    return {name: int(count) for name, count in pairs}


def models() -> int:
    """How many models were looked at."""
    return int(NEEDED.read_text().split(maxsplit=2)[1])


def has_lowering(name: str) -> bool:
    """Whether an operator has a lowering, or its twin has that draws numbers from a key."""
    keyed = name.replace("aten.", f"{compat.OWN_NAMESPACE}.", 1)
    return registry.find_lowering(name) is not None or registry.find_lowering(keyed) is not None


def fate(op: compat.OpOverload) -> str:
    """`lowered` or a key of `REASONS`."""
    name = str(op)
    if has_lowering(name):
        return LOWERED
    if op in compat.decompositions() or compat.is_composite(name):
        return "decomposed"
    if op._schema.is_mutable:
        return "functionalized"
    if {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(op.tags):
        return "data"
    return "missing"


def _overloads() -> dict[str, compat.OpOverload]:
    # Attributes of torch.ops are only those that somebody has asked for.
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    spelled = (name.replace("::", ".") for name in names)
    found = (
        compat.operator(name if name.count(".") > 1 else f"{name}.default") for name in spelled
    )
    return {str(op): op for op in found if op is not None}


def _is_core(op: compat.OpOverload) -> bool:
    return torch.Tag.core in op.tags
