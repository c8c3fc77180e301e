"""Modules of torch as functions of JAX.

    function, params = from_torch(model)
    jax.jit(jax.value_and_grad(lambda params, x: function(params, x).mean()))(params, x)

A call is one operation of JAX, whose StableHLO is that of the module's graph; its gradients are
those of AOTAutograd, by `jax.custom_vjp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pjrt_bridge.jax_interop import primitive
from pjrt_bridge.jax_interop.derivatives import conjugate, is_inexact
from pjrt_bridge.torch_interop.foreign.modules import ModuleCalls
from pjrt_bridge.torch_interop.foreign.structures import unflatten
from pjrt_bridge.torch_interop.foreign.torch_function import TorchFunction
from pjrt_bridge.torch_interop.foreign_functions import ArraySpec


def from_torch(module: Any, *, mutable: bool = False) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A module as a pure function of its parameters, and the parameters as arrays of JAX.

    The function takes `(params, *args, **kwargs)`: arrays nested in tuples, named tuples, lists,
    dicts and None; what is neither is a constant. It works in `jax.jit`, `jax.grad`, `jax.vmap` and
    `jax.shard_map`. The module is traced as it is then, in training or evaluation.

    Gradients are zeros for buffers and for parameters that require none.

    Random numbers, such as those of dropout, are a function of a key: `rng=jax.random.key(0)`,
    which a module that draws needs and others leave unused. Each draw of the module gets numbers of
    its own. A module whose own argument is called `rng` takes it by position.

    Args:
        module: a `torch.nn.Module` on the host.
        mutable: the function also takes `buffers=`, the module's own by default, and gives
            (result, new buffers), for modules that change them, such as batch normalization.

    Returns:
        The function, and the parameters by name, over the memory of the module's where JAX takes
        it: JAX expects that nobody writes into it.

    Raises:
        OptionError: no module, or one that is not on the host.

    The function raises `NotExportable` for what does not lower, and for a module that draws without
    a key.
    """
    calls = ModuleCalls(module)
    params = {name: primitive.array_of(array) for name, array in calls.parameters().items()}
    own = {name: primitive.array_of(array) for name, array in calls.buffers().items()}

    def function(params: dict[str, Any], *args: Any, rng: Any = None, **kwargs: Any) -> Any:
        buffers = kwargs.pop("buffers", own) if mutable else own
        bound = calls.bind(
            params,
            buffers,
            args,
            kwargs,
            is_array=primitive.is_array,
            wide=primitive.has_wide_types(),
        )
        bound = bound._replace(arrays=list(map(primitive.array_of, bound.arrays)))
        specs = tuple(map(ArraySpec.of_array, bound.arrays))
        bits = None if rng is None else partial(primitive.words_of, rng)
        found = _called(*bound.drawn(specs, bits, "rng=, a key of jax.random"))
        result, changed = unflatten(bound.call.returned(), found)
        return (result, changed) if mutable else result

    return function, params


def _called(
    function: TorchFunction, arrays: Sequence[Any], fixed: frozenset[int] = frozenset()
) -> Sequence[Any]:
    """The results of a function, with gradients by all arguments but those at `fixed`."""
    import jax

    def plain(*given: Any) -> Any:
        return tuple(primitive.bind(function, given))

    def forward(*given: Any) -> Any:
        specs = tuple(map(ArraySpec.of_array, given))
        wanted = tuple(at not in fixed and is_inexact(a.dtype) for at, a in enumerate(given))
        gradients = function.derivative(specs, wanted)
        found = _called(gradients.forward, given, fixed)
        count = len(gradients.reads)
        static = primitive.Static((gradients, wanted, primitive.varying_axes(given)))
        return tuple(found[:count]), (tuple(found[count:]), static)

    def backward(kept: Any, given: Any) -> Any:
        saved, static = kept
        gradients, wanted, axes = static.value
        if not any(gradients.reads):
            return tuple(None for _ in wanted)
        # Torch's gradients of complex numbers are the conjugates of JAX's.
        read = [
            conjugate(item) for item, reads in zip(given, gradients.reads, strict=True) if reads
        ]
        made = _called(gradients.backward, [*saved, *read])
        supply = map(conjugate, primitive.alike(made, axes))
        return tuple(next(supply) if chosen else None for chosen in wanted)

    run = jax.custom_vjp(plain)
    run.defvjp(forward, backward)
    found: Sequence[Any] = run(*primitive.alike(arrays))
    return found
