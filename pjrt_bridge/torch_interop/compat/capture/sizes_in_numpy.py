"""Functions of NumPy that are called on sizes.

Dynamo makes arrays of sizes, for which it takes their values: each size would be a graph of its
own. While it traces for this backend, such a call is arithmetic on symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch._dynamo.bytecode_transformation import create_call_function
from torch._dynamo.codegen import PyCodegen
from torch._dynamo.exc import unimplemented
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.misc import NumpyVariable
from torch._dynamo.variables.tensor import SymNodeVariable

from pjrt_bridge.torch_interop.compat.capture.size_arithmetic import OF_NUMPY
from pjrt_bridge.torch_interop.compat.capture.sized_calls import fits_symbols, inlined

_CONVERSIONS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((int, "int", "int64", np.int64, "int32", np.int32), int),
    **dict.fromkeys((float, "float", "float64", np.float64, "float32", np.float32), float),
}
"""What an argument of `astype` stands for."""


class NumpyNumber(SymNodeVariable):
    """A symbol that is a scalar of NumPy in code that is not traced."""


def trace_sizes_in_numpy(is_for_us: Callable[[Any], bool]) -> None:
    """Have Dynamo trace arithmetic where functions of NumPy are called on sizes.

    Args:
        is_for_us: says of Dynamo's translator whether it traces for this backend.
    """
    call, method = NumpyVariable.call_function, SymNodeVariable.call_method
    load = PyCodegen.__call__
    fits = {function: fits_symbols(function, instead) for function, instead in OF_NUMPY.items()}

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        instead = OF_NUMPY.get(self.value) if callable(self.value) else None
        if (
            instead is not None
            and is_for_us(tx)
            and all(map(_is_number, (*args, *kwargs.values())))
            and fits[self.value](args, kwargs)
        ):
            made = inlined(tx, instead, args, kwargs).realize()
            is_number = type(made) is SymNodeVariable
            return NumpyNumber(made.as_proxy(), made.sym_num) if is_number else made
        return call(self, tx, args, kwargs)

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        # The scalars of NumPy have these methods, where Python's numbers have none.
        if is_for_us(tx) and not kwargs:
            if name == "item" and not args:
                return self
            if name == "astype" and len(args) == 1 and args[0].is_python_constant():
                convert = _CONVERSIONS.get(args[0].as_python_constant())
                if convert is not None:
                    return VariableTracker.build(tx, convert).call_function(tx, [self], {})
        if is_for_us(tx) and hasattr(np.float64, name) and not hasattr(float, name):
            unimplemented(
                gb_type="method of a NumPy scalar",
                context=f"{name} of {self}",
                explanation=f"The method {name!r} is not traced for a number made of sizes.",
                hints=[],
            )
        return method(self, tx, name, args, kwargs)

    def __call__(self: Any, value: Any, allow_cache: bool = True) -> None:  # noqa: N807
        if not isinstance(value, NumpyNumber):
            load(self, value, allow_cache)
            return
        name = "float64" if value.python_type() is float else "int64"
        self.add_push_null(lambda: self.load_import_from("numpy", name))
        load(self, value, allow_cache)
        self.extend_output(create_call_function(1, False))

    PyCodegen.__call__ = __call__  # type: ignore[method-assign]
    NumpyVariable.call_function = call_function  # type: ignore[method-assign]
    SymNodeVariable.call_method = call_method  # type: ignore[method-assign]


def _is_number(value: Any) -> bool:
    """Whether an argument that is traced is a number, or several."""
    if isinstance(value, BaseListVariable):
        return all(map(_is_number, value.items))
    value = value.realize()
    return isinstance(value, SymNodeVariable) or (
        value.is_python_constant() and isinstance(value.as_python_constant(), (int, float))
    )
