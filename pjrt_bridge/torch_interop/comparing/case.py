"""Cases to measure: a user's function and the arguments of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pjrt_bridge.errors import OptionError
from pjrt_bridge.named_functions import load
from pjrt_bridge.torch_interop.example_inputs import example_input


@dataclass(frozen=True)
class Case:
    """A function and the arguments of a call.

    Attributes:
        function: a function or module.
        args: by position.
        kwargs: by name.
        own_mode: whether the function decides itself whether gradients are computed: nobody gave
            it arguments.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    own_mode: bool = False


def case_of(target: str, inputs: Sequence[str]) -> Case:
    """The case that a user names; its random numbers are the same in every process.

    Args:
        target: see `load`. A function without arguments may return `(function, args)` or
            `(function, args, kwargs)`, which is the case then; otherwise it is measured itself.
        inputs: descriptions of arguments; see `example_input`.

    Raises:
        OptionError: there is no such function, or it takes other arguments.
    """
    torch.manual_seed(0)
    function = load(target)
    torch.manual_seed(0)
    if inputs:
        return Case(function, tuple(map(example_input, inputs)))
    if isinstance(function, torch.nn.Module) or _takes_arguments(function):
        raise OptionError(
            f"{target} takes arguments: give one --input for each, such as --input f32[8,64], or "
            "name a function without arguments that returns (model, args)"
        )
    made = function()
    if isinstance(made, tuple) and 2 <= len(made) <= 3 and callable(made[0]):
        args, kwargs = made[1], made[2] if len(made) == 3 else {}
        if isinstance(args, Mapping):
            args, kwargs = (), args
        if isinstance(args, (tuple, list)) and isinstance(kwargs, Mapping):
            return Case(made[0], tuple(args), kwargs)
        raise OptionError(
            f"{target} returned a function with a {type(args).__name__} and a "
            f"{type(kwargs).__name__}, expected (function, args) or (function, args, kwargs)"
        )
    return Case(function, own_mode=True)


def _takes_arguments(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:
        return False
    return False
