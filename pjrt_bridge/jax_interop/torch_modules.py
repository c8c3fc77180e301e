"""Modules of torch as functions of JAX.

    function, params = from_torch(model)
    jax.jit(jax.value_and_grad(lambda params, x: function(params, x).mean()))(params, x)

A call is one operation of JAX, whose StableHLO is that of the module's graph; its gradients are
those of AOTAutograd, by `jax.custom_vjp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pjrt_bridge.jax_interop import primitive
from pjrt_bridge.jax_interop.derivatives import is_inexact
from pjrt_bridge.torch_interop.foreign.modules import ModuleCalls
from pjrt_bridge.torch_interop.foreign.structures import flatten, unflatten
from pjrt_bridge.torch_interop.foreign.torch_function import TorchFunction
from pjrt_bridge.torch_interop.foreign_functions import Spec


def from_torch(module: Any, *, mutable: bool = False) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A module as a pure function of its parameters, and the parameters as arrays of JAX.

    The function takes `(params, *args, **kwargs)`: arrays nested in tuples, named tuples, lists,
    dicts and None; what is neither is a constant. It works in `jax.jit`, `jax.grad`, `jax.vmap` and
    `jax.shard_map`. The module is traced as it is then, in training or evaluation; in training it
    may draw no random numbers.

    Args:
        module: a `torch.nn.Module` on the host.
        mutable: the function also takes `buffers=`, the module's own by default, and gives
            (result, new buffers), for modules that change them, such as batch normalization.

    Returns:
        The function, and the parameters by name, over the memory of the module's where JAX takes
        it: JAX expects that nobody writes into it.

    Raises:
        OptionError: no module, or one that is not on the host.
    """
    calls = ModuleCalls(module)
    params = {name: primitive.array_of(array) for name, array in calls.parameters().items()}
    own = {name: primitive.array_of(array) for name, array in calls.buffers().items()}

    def function(params: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        buffers = kwargs.pop("buffers", own) if mutable else own
        leaves: list[Any] = []
        structure = flatten((dict(params), dict(buffers), args, kwargs), leaves)
        arrays = [leaf for leaf in leaves if primitive.is_array(leaf)]
        constants = tuple(None if primitive.is_array(leaf) else leaf for leaf in leaves)
        call = calls.function(structure, constants, wide=primitive.has_wide_types())
        found = _called(call.function, arrays)
        result, changed = unflatten(call.returned(), found)
        return (result, changed) if mutable else result

    return function, params


def _called(function: TorchFunction, arrays: Sequence[Any]) -> Sequence[Any]:
    import jax

    def plain(*given: Any) -> Any:
        return tuple(primitive.bind(function, given))

    def forward(*given: Any) -> Any:
        specs = tuple(map(Spec.of_array, given))
        wanted = tuple(is_inexact(array.dtype) for array in given)
        gradients = function.derivative(specs, wanted)
        found = _called(gradients.forward, given)
        count = len(gradients.reads)
        static = primitive.Static((gradients, wanted))
        return tuple(found[:count]), (tuple(found[count:]), static)

    def backward(kept: Any, given: Any) -> Any:
        saved, static = kept
        gradients, wanted = static.value
        read = [item for item, reads in zip(given, gradients.reads, strict=True) if reads]
        supply = iter(_called(gradients.backward, [*saved, *read]))
        return tuple(next(supply) if chosen else None for chosen in wanted)

    run = jax.custom_vjp(plain)
    run.defvjp(forward, backward)
    found: Sequence[Any] = run(*arrays)
    return found
