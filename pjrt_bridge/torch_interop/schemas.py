"""Schemas of operators: overload, arguments, and whether they are written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pjrt_bridge.torch_interop import compat


def overload(operator: Any) -> compat.OpOverload | None:
    """The overload behind what users name an operator by; None for anything else.

    Args:
        operator: what `torch.library.custom_op` made, an overload or an operator of `torch.ops`,
            or a name such as `"mylib::twice"`.
    """
    # A `torch.library.CustomOpDef`.
    operator = getattr(operator, "_opoverload", operator)
    if isinstance(operator, str):
        name = operator.replace("::", ".")
        return compat.operator(name) or compat.operator(f"{name}.default")
    if not isinstance(operator, compat.OpOverload):
        operator = getattr(operator, "default", None)
    return operator if isinstance(operator, compat.OpOverload) else None


def schema_of(name: str) -> str | None:
    """The schema of an operator overload as the installed PyTorch states it.

    Args:
        name: such as `"aten.mm.default"`.

    Returns:
        Such as `"aten::mm(Tensor self, Tensor mat2) -> Tensor"`; None where PyTorch has no such
        overload.
    """
    found = compat.operator(name)
    return None if found is None else str(found._schema)


def mutates(overload: compat.OpOverload) -> bool:
    """Whether an operator writes to an argument."""
    return bool(overload._schema.is_mutable)


def tensor_arguments(overload: compat.OpOverload) -> tuple[str, ...]:
    """Names of the arguments that are tensors, in order."""
    arguments = overload._schema.arguments
    return tuple(item.name for item in arguments if isinstance(item.type, torch.TensorType))


def gives_one_tensor(overload: compat.OpOverload) -> bool:
    """Whether an operator has one result, a tensor."""
    returns = overload._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.TensorType)


def bind(
    overload: compat.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments of a call by name, with the defaults of those that are not given."""
    arguments = overload._schema.arguments
    given = dict(zip((item.name for item in arguments), args, strict=False)) | dict(kwargs)
    return {item.name: given.get(item.name, item.default_value) for item in arguments}
