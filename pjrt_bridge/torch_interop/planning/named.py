"""Models that users name on a command line, traced."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn, optim

from pjrt_bridge import named_functions
from pjrt_bridge.errors import OptionError
from pjrt_bridge.torch_interop.example_inputs import example_promise
from pjrt_bridge.torch_interop.planning.api import trace
from pjrt_bridge.torch_interop.planning.traced import TracedModel


def traced_model(
    model: str, inputs: Sequence[str], axis: str, optimizer: str | None, *, training: bool
) -> TracedModel:
    """A model that a user names, traced on the device `meta`.

    Args:
        model: a module class, or a function that makes a module, or one and its plan; as
            `named_functions.load` takes it.
        inputs: descriptions of arguments, `[NAME=]f32[8,64]`.
        axis: that the plan divides over.
        optimizer: the name of a class of torch.optim; None for none.
        training: trace loss and gradients, if not a whole step.

    Raises:
        OptionError: what was named makes no model, or there is no such optimizer; inputs that are
            not the model's arguments.
        DataError: an input that is none.
    """
    with torch.device("meta"):
        made: Any = named_functions.load(model)
        if not isinstance(made, nn.Module):
            made = made()
    styles = None
    if isinstance(made, tuple) and len(made) == 2:
        made, styles = made
    if not isinstance(made, nn.Module):
        raise OptionError(
            f"{model}: found a {type(made).__name__}, expected a module, or a module and its plan"
        )
    args, kwargs = [], {}
    for text in inputs:
        name, equals, rest = text.partition("=")
        if equals and name.isidentifier():
            kwargs[name] = example_promise(rest)
        else:
            args.append(example_promise(text))
    signature = inspect.signature(made.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise OptionError(
            f"--input: {error}; found {list(inputs)}, expected arguments of "
            f"{type(made).__name__}.forward{signature}"
        ) from None
    chosen = None if optimizer is None else _optimizer(optimizer)(made.parameters())
    return trace(
        made,
        args,
        kwargs,
        plan=styles,
        axis=axis,
        training=training or optimizer is not None,
        optimizer=chosen,
    )


def _optimizer(name: str) -> Any:
    known = {
        key.lower(): value
        for key, value in vars(optim).items()
        if isinstance(value, type) and issubclass(value, optim.Optimizer)
    }
    if name.lower() not in known:
        names = sorted(value.__name__ for value in known.values())
        raise OptionError(f"--optimizer: found {name!r}, expected one of {', '.join(names)}")
    return known[name.lower()]
