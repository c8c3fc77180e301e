"""A function of JAX as an operator of torch.

    @torch_op
    def mlp(x, w):
        return jax.nn.gelu(x @ w)

    y = mlp(x, w)        # tensors of torch, with gradients

In eager it is one program of the default plugin, or of the device that its tensors are on. In a
graph that `torch.compile(backend="pjrt")` compiles, and in an exported model, its StableHLO is a
part of the program of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any

from pjrt_bridge.errors import OptionError
from pjrt_bridge.jax_interop.functions import JaxFunction
from pjrt_bridge.torch_interop.foreign.calls import as_operator


def torch_op(
    function: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    random: bool = False,
    row_dims: int = 0,
) -> Any:
    """Make a function of JAX callable with tensors of torch.

    Arguments and results are arrays, nested in tuples, named tuples, lists, dicts and None. Numbers
    of Python are arrays without dimensions, as for `jax.jit`. Gradients are those of `jax.vjp`,
    with the function's own rules, and `torch.vmap` is `jax.vmap`. Where no tensor has floats of 64
    bits, integers have 32 bits, as everywhere in JAX (`jax_enable_x64`).

    Args:
        function: pure; its nesting of results must not depend on sizes or element types.
        static_argnums: positions of arguments that are no arrays; the function is traced for each
            of their values, which must be hashable.
        static_argnames: the same, by name.
        random: the function's first parameter is a key of `jax.random`. Callers leave it out: it is
            drawn from torch's generator.
        row_dims: how many leading dimensions the function keeps apart: 1 for one that maps each row
            of a batch by itself, the rank for an elementwise one. An element of the results depends
            only on elements of the arguments at the same positions in these dimensions; arguments
            without them, or with one row, count for all. Sizes that change are then padded in
            these dimensions under `torch.compile`, without gradients, and one program serves many.

    Returns:
        A function of the same arguments; without `function` a decorator.

    Raises:
        OptionError: a static argument that the function does not have, a number of dimensions
            below 0, or one above 0 of a random function: what it draws depends on its sizes.
    """
    if row_dims < 0 or (row_dims and random):
        raise OptionError(
            f"row_dims: found {row_dims}{' with random=True' if random else ''}, expected 0"
            f"{'' if random else ' or more'}"
        )
    if function is None:
        return partial(
            torch_op,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            random=random,
            row_dims=row_dims,
        )
    return as_operator(
        _keyed(function) if random else function,
        JaxFunction,
        framework="jax",
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        keyed=random,
        row_dims=row_dims,
    )


def _keyed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of the bits of its key."""

    @wraps(function)
    def call(bits: Any, *args: Any, **kwargs: Any) -> Any:
        import jax

        words = jax.lax.bitcast_convert_type(bits, "uint32")
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        return function(key, *args, **kwargs)

    return call
