"""Torch's higher-order operators under the autocast of a device that torch does not list."""

from __future__ import annotations

import torch
from torch._C import DispatchKey


def ignore_autocast(autocast_key: str) -> None:
    """Have higher-order operators pass a device's autocast on to the operators within.

    Torch has them do so for the devices of its own; otherwise such an operator, a branch or an
    activation checkpoint say, is refused where autocast is on.

    Args:
        autocast_key: the name of the dispatch key.
    """
    key = getattr(DispatchKey, autocast_key)
    for operator in tuple(torch._ops._higher_order_ops.values()):
        if key not in operator.py_kernels:
            operator.fallthrough(key)  # type: ignore[no-untyped-call]
    # Those of modules that are imported later begin with these.
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
