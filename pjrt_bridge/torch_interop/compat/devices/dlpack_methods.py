"""What tensors of torch's device for others say to those who ask for their memory by DLPack."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import torch


def answer_for(name: str, refusal: Callable[[torch.Tensor], NoReturn]) -> None:
    """Answer `__dlpack__` and `__dlpack_device__` of tensors on a device, for good.

    Torch gives an address that is none of memory, or says that it does not know the device.

    Args:
        name: of the device's type.
        refusal: raises.
    """
    for method in ("__dlpack__", "__dlpack_device__"):
        setattr(torch.Tensor, method, _answering(getattr(torch.Tensor, method), name, refusal))


def _answering(
    before: Callable[..., Any], name: str, refusal: Callable[[torch.Tensor], NoReturn]
) -> Callable[..., Any]:
    @wraps(before)
    def answer(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == name:
            refusal(self)
        return before(self, *args, **kwargs)

    return answer
