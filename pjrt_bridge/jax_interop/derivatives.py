"""Gradients by `jax.vjp` and tangents by `jax.jvp`, in torch's conventions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

from pjrt_bridge.torch_interop.foreign_functions import ArrayFunction

_CHEAP = frozenset(
    [
        "abs",
        "add",
        "and",
        "convert_element_type",
        "copy",
        "cos",
        "broadcast_in_dim",
        "div",
        "eq",
        "erf",
        "exp",
        "expand_dims",
        "expm1",
        "ge",
        "gt",
        "integer_pow",
        "iota",
        "le",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "ne",
        "neg",
        "not",
        "or",
        "pow",
        "reshape",
        "rsqrt",
        "select_n",
        "sign",
        "sin",
        "sqrt",
        "square",
        "squeeze",
        "stop_gradient",
        "sub",
        "tanh",
        "transpose",
    ]
)
"""Operations of JAX that are computed again in the backward, where a compiler fuses them."""


def costs_more_than_memory(primitive: Any, *_: Any, **__: Any) -> bool:
    """Whether the results of an operation are saved: a policy of `jax.checkpoint`."""
    return primitive.name not in _CHEAP


def vjp(
    function: ArrayFunction, wanted: Sequence[bool], arrays: Sequence[Any], sizes: Sequence[Any]
) -> tuple[Sequence[Any], Callable[[Any], Sequence[Any]]]:
    """Results, and what gives the gradients of the wanted arguments for those of the results."""
    import jax

    chosen = compress(arrays, wanted)
    return jax.vjp(_of(function, wanted, arrays, sizes), *chosen)  # type: ignore[no-any-return]


def jvp(
    function: ArrayFunction,
    moved: Sequence[bool],
    arrays: Sequence[Any],
    tangents: Sequence[Any],
    sizes: Sequence[Any],
) -> Sequence[Any]:
    """Tangents of the results that are floats, for those of the arguments that have some."""
    import jax

    chosen = tuple(compress(arrays, moved))
    results, found = jax.jvp(_of(function, moved, arrays, sizes), chosen, tuple(tangents))
    return [its for item, its in zip(results, found, strict=True) if is_inexact(item.dtype)]


def _of(
    function: ArrayFunction, wanted: Sequence[bool], arrays: Sequence[Any], sizes: Sequence[Any]
) -> Callable[..., list[Any]]:
    """A function of the wanted arguments."""

    def call(*chosen: Any) -> list[Any]:
        supply = iter(chosen)
        given = [
            next(supply) if is_wanted else array
            for array, is_wanted in zip(arrays, wanted, strict=True)
        ]
        return list(function(given, sizes))

    return call


def pulled(pull: Any, results: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
    """Gradients of arguments, for those of the results that are floats.

    Gradients of complex numbers are the conjugates of JAX's in torch.
    """
    import jax
    import numpy as np

    supply = iter(given)
    cotangents = [
        conjugate(next(supply))
        if is_inexact(item.dtype)
        else np.zeros(item.shape, jax.dtypes.float0)
        for item in results
    ]
    return [conjugate(found) for found in pull(cotangents)]


def conjugate(array: Any) -> Any:
    """The complex conjugate; of real arrays the array."""
    import jax.numpy as jnp

    return jnp.conj(array) if jnp.iscomplexobj(array) else array


def description(array: Any) -> Any:
    """The type of an array that is traced."""
    import jax

    found = jax.typeof(array)
    return jax.ShapeDtypeStruct(found.shape, found.dtype, weak_type=found.weak_type)


def is_inexact(dtype: Any) -> bool:
    """Whether arrays of an element type have gradients."""
    import jax.numpy as jnp

    return bool(jnp.issubdtype(dtype, jnp.inexact))
