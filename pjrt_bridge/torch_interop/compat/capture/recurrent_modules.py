"""Modules of recurrent layers, of which Dynamo would compile nothing.

`torch._dynamo.config.allow_rnn` is off because PyTorch's decomposition makes nodes of every step.
While Dynamo traces for this backend, such modules are traced, and their layers are made of other
functions. Packed sequences, projections of the state and `torch.func` divide a function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack
from torch._dynamo import config
from torch._dynamo.exc import unimplemented
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

_MODULES = (torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM)


def trace_recurrent_modules(
    functions: Mapping[Any, Callable[..., Any]],
    is_supported: Callable[..., bool],
    is_for_us: Callable[[Any], bool],
) -> None:
    """Have Dynamo trace modules of recurrent layers, and functions instead of torch's.

    Does nothing with a torch that has no such setting: it decides then what it compiles.

    Args:
        functions: by torch's function, such as `torch.lstm`, the one that is traced instead.
        is_supported: says of the number of weights, whether there are biases, the number of layers
            and whether they have two directions, whether a function can be traced instead.
        is_for_us: says of Dynamo's translator whether it traces for this backend.
    """
    before = getattr(VariableBuilder, "wrap_module", None)
    if before is None or not hasattr(config, "allow_rnn"):
        return

    def wrap_module(self: Any, value: Any) -> Any:
        if isinstance(value, _MODULES) and is_for_us(self.tx):
            with config.patch(allow_rnn=True):
                return before(self, value)
        return before(self, value)

    VariableBuilder.wrap_module = wrap_module  # type: ignore[method-assign]
    for function, instead in functions.items():
        _trace_instead(function, instead, is_supported, is_for_us)


def _trace_instead(
    function: Any,
    instead: Callable[..., Any],
    is_supported: Callable[..., bool],
    is_for_us: Callable[[Any], bool],
) -> None:
    handlers: Any = TorchInGraphFunctionVariable._get_handlers()

    def handle(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_for_us(tx):
            return None
        # Of a packed sequence there are the sizes of batches before the states and weights.
        why = "the sequence is packed"
        if not kwargs and len(args) == 9 and isinstance(args[2], BaseListVariable):
            options = [_constant(tx, item) for item in args[3:]]
            has_biases, layers, _, _, bidirectional, _ = options
            why = "its state is projected"
            if is_supported(len(args[2].items), has_biases, layers, bidirectional):
                why = "torch.func transforms it"
                if peek_interpreter_stack() is None:
                    traced = VariableTracker.build(tx, instead)
                    given = [*args[:3], *(VariableTracker.build(tx, item) for item in options)]
                    return tx.inline_user_function_return(traced, given, {})
        return unimplemented(
            gb_type="a recurrent layer of a kind that is not compiled",
            context=f"{function.__name__}: {why}",
            explanation=f"{function.__name__} runs in PyTorch, because {why}.",
            hints=["Give padded sequences, and layers without proj_size."],
        )

    handlers[function] = handle


def _constant(tx: Any, value: Any) -> Any:
    """The value of an option; with `dynamic=True` Dynamo takes numbers of a module for symbols."""
    if isinstance(value, SymNodeVariable):
        return value.evaluate_expr(tx.output)
    return value.as_python_constant()
