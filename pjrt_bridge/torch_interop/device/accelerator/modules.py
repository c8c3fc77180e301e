"""Modules that move to the device, or from it, keep their parameters.

Weights that several layers share go on to be shared, and optimizers go on to know them. For devices
that it knows torch puts other memory under a parameter. For this one it makes a new parameter for
each place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.named_device.naming import NAME


def register() -> None:
    """Have modules keep parameters that torch replaces."""
    plain: Any = nn.Module._apply

    def apply(self: nn.Module, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
        places = [
            (module, key, parameter)
            for module in (self.modules() if recurse else (self,))
            for key, parameter in module._parameters.items()
            if parameter is not None
        ]
        made: nn.Module = plain(self, fn, recurse)
        _keep(places)
        return made

    nn.Module._apply = apply  # type: ignore[method-assign]


def _keep(places: list[tuple[nn.Module, str, nn.Parameter]]) -> None:
    """Put one parameter where one was, the same object where torch can swap what it holds."""
    kept: dict[int, nn.Parameter] = {}
    for module, key, before in places:
        after = module._parameters[key]
        if after is None or after is before or NAME not in (before.device.type, after.device.type):
            continue
        if id(before) not in kept:
            kept[id(before)] = _moved(before, after)
        module._parameters[key] = kept[id(before)]


def _moved(before: nn.Parameter, after: nn.Parameter) -> nn.Parameter:
    waits: bool = nn.parameter.is_lazy(before)
    if waits:
        # What torch makes of it has a shape, and would never be given the right one.
        make: Any = nn.UninitializedParameter
        kept: nn.Parameter = make(before.requires_grad, device=after.device, dtype=after.dtype)
        return kept
    try:
        compat.swap_parameters(before, after)
    except RuntimeError:
        # Something else refers to it, such as a graph that autograd has not let go of.
        return after
    return before
