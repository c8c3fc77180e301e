"""`torch._check_tensor_all`, of which Dynamo asks for a number and ends the graph.

transformers checks so, among others, whether there is a token for each feature of an image. While
Dynamo traces for this backend, the check is an assertion in the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from pjrt_bridge.torch_interop.compat.capture.sized_calls import inlined

_MESSAGE = (
    "Expected cond to be True, but got False. (Could this error message be improved? If so, please "
    "report an enhancement request to PyTorch.)"
)
"""That of `torch._check_tensor_all` without a message."""


def trace_tensor_checks(is_for_us: Callable[[Any], bool]) -> None:
    """Have Dynamo trace checks of tensors as assertions.

    Args:
        is_for_us: says of Dynamo's translator whether it traces for this backend.
    """
    handlers: Any = TorchInGraphFunctionVariable._get_handlers()
    function = torch._check_tensor_all
    before = handlers.get(function)

    def handle(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if is_for_us(tx) and len(args) == 1 and not kwargs and _is_mask(args[0].realize()):
            return inlined(tx, _assert_all, args, kwargs)
        return None if before is None else before(self, tx, *args, **kwargs)

    handlers[function] = handle


def _is_mask(value: Any) -> bool:
    """Whether what is traced is a tensor of booleans; the check raises for others."""
    if not isinstance(value, TensorVariable):
        return False
    made: bool = value.as_proxy().node.meta["example_value"].dtype is torch.bool
    return made


def _assert_all(cond: torch.Tensor) -> None:
    torch.ops.aten._assert_async.msg(torch.all(cond), _MESSAGE)
