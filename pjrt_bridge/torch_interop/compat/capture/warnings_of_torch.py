"""Warnings in PyTorch's own functions, at which Dynamo ends the graph.

What comes after the end of a graph in a function of `torch.nn` runs in PyTorch, as its functions
are no code that Dynamo goes on with: all of `nn.Transformer`, if its masks are of two types. While
Dynamo traces for this backend, PyTorch's functions warn when they are traced, and go on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.functions import SkipFunctionVariable


def trace_warnings(is_for_us: Callable[[Any], bool]) -> None:
    """Have Dynamo go on behind warnings of PyTorch's functions.

    Args:
        is_for_us: says of Dynamo's translator whether it traces for this backend.
    """
    before = SkipFunctionVariable.call_function

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.value is warnings.warn and is_for_us(tx) and _is_of_torch(tx):
            given = _constants(args, kwargs)
            if given is not None and _has_warned(tx, *given[0], **given[1]):
                return ConstantVariable.create(None)
        return before(self, tx, args, kwargs)

    SkipFunctionVariable.call_function = call_function  # type: ignore[method-assign]


def _is_of_torch(tx: Any) -> bool:
    """Whether what is traced is code of PyTorch, and inlined in other code."""
    name = str(tx.f_globals.get("__name__"))
    return tx.parent is not None and name.split(".")[0] == "torch"


def _constants(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]] | None:
    if not all(item.is_python_constant() for item in (*args, *kwargs.values())):
        return None
    return (
        [item.as_python_constant() for item in args],
        {name: item.as_python_constant() for name, item in kwargs.items()},
    )


def _has_warned(
    tx: Any, message: Any, category: Any = None, stacklevel: int = 1, **others: Any
) -> bool:
    """Warn as of the code that is traced; False where that is not possible, or an error."""
    if others or not isinstance(message, str):
        return False
    frame = tx
    for _ in range(stacklevel - 1):
        frame = frame.parent or frame
    names = frame.f_globals
    try:
        warnings.warn_explicit(
            message,
            category or UserWarning,
            frame.f_code.co_filename,
            frame.lineno,
            str(names.get("__name__")),
            names.setdefault("__warningregistry__", {}),
        )
    except Warning:
        # Filters make it an error, which PyTorch raises when it runs the call.
        return False
    return True
