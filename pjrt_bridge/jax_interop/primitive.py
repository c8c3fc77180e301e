"""The operation of JAX that calls a function of torch: its types, its StableHLO, its vmap."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any

from pjrt_bridge.jax_interop import compat
from pjrt_bridge.stablehlo import linking
from pjrt_bridge.torch_interop.foreign.torch_function import TorchFunction
from pjrt_bridge.torch_interop.foreign_functions import Spec

_numbers = itertools.count()


class Static:
    """A value that is no array, among values that JAX keeps for gradients."""

    def __init__(self, value: Any) -> None:
        self.value = value


def bind(function: TorchFunction, arrays: Sequence[Any]) -> Sequence[Any]:
    """The results of a function of torch for arrays of JAX, traced or not."""
    found: Sequence[Any] = _primitive().bind(*arrays, function=function)
    return found


def is_array(value: object) -> bool:
    """Whether a value is, or becomes, an array of JAX."""
    import jax
    import numpy as np

    return isinstance(value, (jax.Array, np.ndarray, np.generic, jax.core.Tracer))


def array_of(array: Any) -> Any:
    """An array of JAX, over the memory of a NumPy array where JAX takes it."""
    import jax

    return jax.numpy.asarray(array)


def has_wide_types() -> bool:
    """Whether JAX has types of 64 bits."""
    import jax

    return bool(jax.config.jax_enable_x64)


@cache
def _primitive() -> Any:
    import jax

    def types(*avals: Any, function: TorchFunction) -> list[Any]:
        return [
            jax.core.ShapedArray(spec.shape, spec.dtype.numpy)
            for spec in function.results(list(map(Spec.of_array, avals)))
        ]

    def lower(context: Any, *operands: Any, function: TorchFunction) -> Any:
        program = function.program(list(map(Spec.of_array, context.avals_in)))
        module = context.module_context.module
        prefix = f"{program.name}.{next(_numbers)}"
        symbol, _ = linking.take_over(module, program.bytecode(), prefix)
        return linking.call(module, symbol, operands)

    def mapped(arrays: Any, dimensions: Any, *, function: TorchFunction) -> Any:
        found = bind(function.mapped(tuple(dimensions)), arrays)
        return found, [0] * len(found)

    jax.tree_util.register_static(Static)
    return compat.new_primitive("torch_call", types, lower, mapped)
