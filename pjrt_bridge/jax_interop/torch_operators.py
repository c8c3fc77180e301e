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

from pjrt_bridge.jax_interop.functions import JaxFunction
from pjrt_bridge.torch_interop.foreign.calls import as_operator


def torch_op(
    function: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    random: bool = False,
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

    Returns:
        A function of the same arguments; without `function` a decorator.

    Raises:
        OptionError: a static argument that the function does not have.
    """
    if function is None:
        return partial(
            torch_op,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            random=random,
        )
    return as_operator(
        _keyed(function) if random else function,
        JaxFunction,
        framework="jax",
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        keyed=random,
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
