"""Modules of torch as functions of TensorFlow.

    function, params = from_torch(model)
    variables = {name: tf.Variable(value) for name, value in params.items()}
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(function(variables, x))
    gradients = tape.gradient(loss, variables)

A call is one operation of TensorFlow that holds the StableHLO of the module's graph; its gradients
are those of AOTAutograd, by `tf.custom_gradient`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from pjrt_bridge.errors import NotExportable, OptionError
from pjrt_bridge.tf_interop import compat, dtypes
from pjrt_bridge.tf_interop.tensors import as_tensor
from pjrt_bridge.torch_interop.foreign.modules import ModuleCalls
from pjrt_bridge.torch_interop.foreign.structures import unflatten
from pjrt_bridge.torch_interop.foreign.torch_function import Gradients, TorchFunction
from pjrt_bridge.torch_interop.foreign_functions import ArraySpec

_STABLEHLO = "1.13.0"
"""Every supported version of TensorFlow reads it."""


def from_torch(module: Any, *, mutable: bool = False) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A module as a pure function of its parameters, and the parameters as tensors of TensorFlow.

    The function takes `(params, *args, **kwargs)`: tensors, variables and NumPy arrays of known
    shapes, nested in tuples, named tuples, lists, dicts and None; what is neither is a constant. It
    works in eager, in `tf.function` (also with `jit_compile=True`), in `tf_interop.function`, where
    it becomes a part of the program, and in SavedModels. The module is traced as it is then, in
    training or evaluation.

    Buffers and parameters that require no gradients have none.

    Random numbers, such as those of dropout, are a function of a seed: `seed=(1, 2)`, two integers
    as for `tf.random.stateless_uniform`, which a module that draws needs and others leave unused. A
    module whose own argument is called `seed` takes it by position.

    Args:
        module: a `torch.nn.Module` on the host.
        mutable: the function also takes `buffers=`, the module's own by default, and gives
            (result, new buffers), for modules that change them, such as batch normalization.

    Returns:
        The function, and copies of the parameters by name.

    Raises:
        OptionError: no module, or one that is not on the host.

    The function raises `NotExportable` for what does not lower, for sizes that are not known, and
    for a module that draws without a seed.
    """
    calls = ModuleCalls(module)
    params = {name: _copied(array) for name, array in calls.parameters().items()}
    own = {name: _copied(array) for name, array in calls.buffers().items()}

    def function(params: dict[str, Any], *args: Any, seed: Any = None, **kwargs: Any) -> Any:
        buffers = kwargs.pop("buffers", own) if mutable else own
        bound = calls.bind(params, buffers, args, kwargs, is_array=_is_array, wide=True)
        bound = bound._replace(arrays=list(map(tf.convert_to_tensor, bound.arrays)))
        specs = _specs(bound.call.function, bound.arrays)
        bits = None if seed is None else partial(_words_of, seed)
        found = _called(*bound.drawn(specs, bits, "seed=, two integers"))
        result, changed = unflatten(bound.call.returned(), found)
        return (result, changed) if mutable else result

    # In a `tf.function` AutoGraph would convert the module, and the bridge's own tracing.
    unconverted: Callable[..., Any] = tf.autograph.experimental.do_not_convert(function)
    return unconverted, params


def _copied(array: np.ndarray[Any, Any]) -> Any:
    # A variable made of a tensor has the tensor's memory, where PyTorch's optimizers would write.
    return as_tensor(array.copy())


def _is_array(value: object) -> bool:
    return tf.is_tensor(value) or isinstance(value, (tf.Variable, np.ndarray, np.generic))


def _words_of(seed: Any) -> Any:
    """64 random bits of a seed, as two int32.

    Raises:
        OptionError: no seed.
    """
    words = tf.convert_to_tensor(seed)
    if not words.dtype.is_integer or words.shape != (2,):
        raise OptionError(
            f"seed: found {words.dtype.name} of shape {words.shape}, expected two integers"
        )
    return tf.cast(words, tf.int32)


def _called(
    function: TorchFunction,
    tensors: Sequence[Any],
    fixed: frozenset[int] = frozenset(),
    *,
    saves: bool = True,
) -> Sequence[Any]:
    """The results of a function, with gradients by all arguments but those at `fixed`.

    Args:
        function: to call.
        tensors: its arguments.
        fixed: positions of arguments.
        saves: under a tape, what gradients need is computed with the results. Otherwise, and where
            a tape is around a function of TensorFlow, it is computed when gradients are asked for.
    """

    def run(*given: Any) -> Any:
        wanted = tuple(
            at not in fixed and (item.dtype.is_floating or item.dtype.is_complex)
            for at, item in enumerate(given)
        )
        specs = _specs(function, given)
        if not any(wanted):
            return _computed(function, specs, given), lambda *_: [None] * len(given)

        def divided() -> tuple[Gradients, Sequence[Any], Sequence[Any]]:
            """How gradients are computed, the results, and what is saved for gradients."""
            gradients = function.derivative(specs, wanted)
            # What is saved has gradients, too, for gradients of gradients.
            found = _called(gradients.forward, given, fixed, saves=False)
            count = len(gradients.reads)
            return gradients, tuple(found[:count]), found[count:]

        kept = divided() if saves and compat.is_recorded(given) else None

        def pulled(*of_results: Any) -> list[Any]:
            gradients, _, saved = kept or divided()
            if not any(gradients.reads):
                return [None for _ in wanted]
            read = [item for item, reads in zip(of_results, gradients.reads, strict=True) if reads]
            supply = iter(_called(gradients.backward, [*saved, *read]))
            return [next(supply) if chosen else None for chosen in wanted]

        return kept[1] if kept else _computed(function, specs, given), pulled

    found: Sequence[Any] = tf.custom_gradient(run)(*tensors)
    return found


def _computed(
    function: TorchFunction, specs: Sequence[ArraySpec], tensors: Sequence[Any]
) -> tuple[Any, ...]:
    types = [
        tf.TensorSpec(spec.shape, dtypes.name_of(spec.dtype)) for spec in function.results(specs)
    ]
    module = function.artifact(specs, _STABLEHLO)
    return tuple(compat.call_module(module, tensors, types))


def _specs(function: TorchFunction, tensors: Sequence[Any]) -> tuple[ArraySpec, ...]:
    for at, tensor in enumerate(tensors):
        if not tensor.shape.is_fully_defined():
            raise NotExportable(
                f"{function.label}: array {at} has shape {tensor.shape}, expected known sizes: "
                "give them in the input_signature of the tf.function"
            )
    return tuple(
        ArraySpec(tuple(tensor.shape), dtypes.of(tensor.dtype, f"array {at} of {function.label}"))
        for at, tensor in enumerate(tensors)
    )
