"""The operation of JAX that calls a function of torch: its types, its StableHLO, its vmap."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any

from pjrt_bridge.errors import OptionError
from pjrt_bridge.jax_interop import compat
from pjrt_bridge.stablehlo import linking
from pjrt_bridge.torch_interop.foreign.torch_function import TorchFunction
from pjrt_bridge.torch_interop.foreign_functions import ArraySpec

_numbers = itertools.count()


class Static:
    """A value that is no array, among values that JAX keeps for gradients."""

    def __init__(self, value: Any) -> None:
        self.value = value


def bind(function: TorchFunction, arrays: Sequence[Any]) -> Sequence[Any]:
    """The results of a function of torch for arrays of JAX, traced or not."""
    found: Sequence[Any] = _primitive().bind(*alike(arrays), function=function)
    return found


def varying_axes(arrays: Sequence[Any]) -> frozenset[Any]:
    """The axes of a mesh over which any of these arrays varies, within `jax.shard_map`."""
    return frozenset[Any]().union(*map(compat.varying_axes, arrays))


def alike(arrays: Sequence[Any], axes: frozenset[Any] | None = None) -> Sequence[Any]:
    """The arrays, all of which vary over the same axes of a mesh: those of any, or these.

    Where they are differentiated, gradients of what did not vary are summed.
    """
    import jax

    axes = varying_axes(arrays) if axes is None else axes

    def varied(array: Any) -> Any:
        missing = axes - compat.varying_axes(array)
        return jax.lax.pcast(array, tuple(sorted(missing)), to="varying") if missing else array

    return list(map(varied, arrays)) if axes else arrays


def words_of(key: Any) -> Any:
    """64 random bits of a key of JAX, as two int32.

    Raises:
        OptionError: no key.
    """
    import jax

    try:
        drawn = jax.random.bits(key, (2,), "uint32")
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"rng: found {key!r}, expected a key of jax.random, such as jax.random.key(0)"
        ) from error
    return jax.lax.bitcast_convert_type(drawn, "int32")


def is_array(value: object) -> bool:
    """Whether a value is, or becomes, an array of JAX."""
    import jax
    import numpy as np

    return isinstance(value, (jax.Array, np.ndarray, np.generic, jax.core.Tracer))


def array_of(array: Any) -> Any:
    """An array of a type that JAX has, over the memory of a NumPy array where JAX takes it."""
    import jax

    made = jax.numpy.asarray(array)
    if compat.is_mapped_constant(made):
        return jax.numpy.squeeze(jax.numpy.expand_dims(made, 0), 0)
    return made


def has_wide_types() -> bool:
    """Whether JAX has types of 64 bits."""
    import jax

    return bool(jax.config.jax_enable_x64)


@cache
def _primitive() -> Any:
    import jax

    def types(*avals: Any, function: TorchFunction) -> list[Any]:
        found = function.results(list(map(ArraySpec.of_array, avals)))
        # All operands vary over the same axes, see `alike`.
        return [compat.array_type(spec.shape, spec.dtype.numpy, avals) for spec in found]

    def lower(context: Any, *operands: Any, function: TorchFunction) -> Any:
        program = function.program(list(map(ArraySpec.of_array, context.avals_in)))
        module = context.module_context.module
        prefix = f"{program.name}.{next(_numbers)}"
        symbol, _ = linking.take_over(module, program.bytecode(), prefix)
        return linking.call(module, symbol, operands)

    def mapped(arrays: Any, dimensions: Any, *, function: TorchFunction) -> Any:
        dims = tuple(dimensions)
        rows = [
            spec
            if dim is None
            else ArraySpec((*spec.shape[:dim], *spec.shape[dim + 1 :]), spec.dtype)
            for spec, dim in zip(map(ArraySpec.of_array, arrays), dims, strict=True)
        ]
        found = bind(function.mapped(dims, rows), arrays)
        return found, [0] * len(found)

    jax.tree_util.register_static(Static)
    return compat.new_primitive("torch_call", types, lower, mapped)
