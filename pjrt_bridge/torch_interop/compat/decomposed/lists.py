"""Operators on lists of tensors, as optimizers use them: one operator for each tensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.operators import operator


def list_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each that writes to nothing its own kernel, which calls ATen for each tensor."""
    names = torch._C._dispatch_get_all_op_names()
    spelled = (name.replace("::", ".") for name in names if name.startswith("aten::_foreach_"))
    found = (operator(name if name.count(".") > 1 else f"{name}.default") for name in spelled)
    key = DispatchKey.CompositeExplicitAutograd
    return {
        op: partial(op._op_dk, key)
        for op in found
        if op is not None and not op._schema.is_mutable and op.has_kernel_for_dispatch_key(key)
    }
