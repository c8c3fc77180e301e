"""Random operators whose numbers are symbols: traced as what takes a key and any number.

Torch's own take the values of floats alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pjrt_bridge.torch_interop.compat import OpOverload
from pjrt_bridge.torch_interop.randomness.host import raise_as_eager
from pjrt_bridge.torch_interop.randomness.operators import KEY, counterpart, gives
from pjrt_bridge.torch_interop.resident.calls.calls import Call, Leaf
from pjrt_bridge.torch_interop.resident.calls.templates import built

_IN_PLACE = {
    "bernoulli_.float": "bernoulli.p",
    "cauchy_.default": "cauchy.default",
    "exponential_.default": "exponential.default",
    "log_normal_.default": "log_normal.default",
    "normal_.default": "normal_functional.default",
    "uniform_.default": "uniform.default",
}
"""For operators that write into a tensor those that give a new one."""


def drawing_step(op: OpOverload) -> Callable[..., Any] | None:
    """What can be traced in the place of a random operator; None for other operators."""
    new = _IN_PLACE.get(op.__name__)
    made = counterpart(f"aten.{op.__name__ if new is None else new}")
    if op.namespace != "aten" or made is None:
        return None

    def draw(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("generator", None)
        taken = [item for item in args if isinstance(item, torch.Tensor)]
        if new is not None and not gives(f"aten.{new}", taken[0], taken):
            return op(*args, **kwargs)
        if op.__name__.startswith("randint") and not args[1] < args[2]:
            return op(*args, **kwargs)
        found = made(KEY(0), *args, **kwargs)
        return found if new is None else taken[0].copy_(found)

    return draw


def takes_numbers(call: Call) -> Callable[[Sequence[float]], bool]:
    """Whether PyTorch draws for certain numbers of a random operator, or raises."""
    template, named = call.template()
    empty: dict[Any, Any] = {}

    def emptied(value: Any) -> Any:
        if isinstance(value, Leaf):
            dtype = call_types[value.place] if value.geometry is None else value.geometry.dtype
            return empty.setdefault(dtype, torch.empty(0, dtype=dtype, device="cpu"))
        return list(map(emptied, value)) if isinstance(value, list) else value

    call_types = [item.dtype for item in call.given]
    args = list(map(emptied, template))
    kwargs = {name: item for name, item in named.items() if name != "device"}
    op = call.op

    def takes(numbers: Sequence[float]) -> bool:
        try:
            raise_as_eager(op, built(args, (), numbers), built(kwargs, (), numbers))
        except (RuntimeError, TypeError, ValueError):
            return False
        return True

    return takes
