"""What torch promises of powers of bools by bools.

Eager PyTorch gives bools. Torch's own promise (2.13) is one of int64 for a Python bool as the
exponent. Powers in place are refused when they are traced, by AOTAutograd itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_impls import op_implementations_checks
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def _is_power(op: OpOverload) -> bool:
    return str(op) == "aten.pow.Tensor_Scalar"


def _of_bools(mode: FakeTensorMode, op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """A promise of bools for a power of bools by a Python bool; others have torch's own rules."""
    if kwargs or len(args) != 2 or type(args[1]) is not bool:
        return NotImplemented
    base = args[0]
    if not isinstance(base, FakeTensor) or base.dtype is not torch.bool:
        return NotImplemented
    with mode:
        return torch.empty_like(base)


def promise_bools() -> None:
    """Have all tracing promise what eager PyTorch gives."""
    # The first that has an answer is taken.
    op_implementations_checks.insert(0, (_is_power, _of_bools))
