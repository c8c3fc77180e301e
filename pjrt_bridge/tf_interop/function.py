"""`function`: a TensorFlow function that runs on a plugin, and in TensorFlow where it has to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, Literal

import tensorflow as tf

from pjrt_bridge.errors import OptionError
from pjrt_bridge.registry import client as select_client
from pjrt_bridge.tf_interop import compat
from pjrt_bridge.tf_interop.compiled import Compiled, Settings
from pjrt_bridge.tf_interop.ledger import LEDGER
from pjrt_bridge.tf_interop.shortcut import MISSED, Shortcut


def function(
    fn: Callable[..., Any] | None = None,
    *,
    plugin: str | None = None,
    fallback: Literal["host", "error"] = "host",
    input_signature: Sequence[Any] | None = None,
) -> Any:
    """Run a function on a PJRT plugin; what that cannot do stays in TensorFlow.

    A decorator, with or without arguments. The function is traced as `tf.function` traces it: once
    for each set of types, shapes and Python values; what it does in Python happens then. Variables
    are read and updated where they are. A call under a gradient tape that was opened outside, and
    one inside another `tf.function`, run in TensorFlow: open the tape inside.

    Args:
        fn: a Python function, a `tf.function`, a concrete function or signature of a SavedModel, a
            Keras model or layer.
        plugin: name of a discovered plugin or path of a library; None: the environment's choice
            or the best that was discovered.
        fallback: what happens to operations that the plugin cannot run: `"host"` runs them in
            TensorFlow and warns once, `"error"` raises.
        input_signature: as of `tf.function`; sizes that are None are compiled as they come.

    Returns:
        A `Function`; without `fn` a decorator.

    Raises:
        OptionError: an impossible value.
        PluginNotFound: no plugin of that name, or none at all.
    """
    if fn is None:
        return functools.partial(
            function, plugin=plugin, fallback=fallback, input_signature=input_signature
        )
    if fallback not in ("host", "error"):
        raise OptionError(f"fallback: found {fallback!r}, expected 'host' or 'error'")
    if not callable(fn):
        raise OptionError(f"fn: found a {type(fn).__name__}, expected something to call")
    return Function(fn, Settings(select_client(plugin), fallback), input_signature)


class Function:
    """A TensorFlow function on a plugin.

    Args:
        fn: see `function`.
        settings: plugin and fallback.
        input_signature: as of `tf.function`.
    """

    def __init__(
        self, fn: Callable[..., Any], settings: Settings, input_signature: Sequence[Any] | None
    ) -> None:
        self._function = polymorphic(fn, input_signature)
        self._settings = settings
        self._compiled: dict[int, Compiled] = {}
        self._known: dict[Any, Compiled] = {}
        self._shortcut: Shortcut | None = None
        self.python_function = fn
        self.__name__ = str(getattr(fn, "__name__", None) or getattr(fn, "name", "function"))
        self.__doc__ = getattr(fn, "__doc__", None)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function gives.

        Raises:
            FallbackForbidden: it cannot run on the device as a whole and the host is forbidden.
            tf.errors.OpError: as TensorFlow raises it.
        """
        if not compat.executing_eagerly():
            return self._function(*args, **kwargs)
        if self._shortcut is not None and not kwargs and not compat.is_recording():
            found = self._shortcut.call(args)
            if found is not MISSED:
                return found
        compiled = self.compiled(args, kwargs)
        if compat.is_recording() and self._wants_gradients(compiled, args, kwargs):
            LEDGER.warn_once(
                f"function {self.__name__!r} is called under a gradient tape, so TensorFlow runs "
                "it: open the tape inside of the function to compute gradients on the device"
            )
            return self._function(*args, **kwargs)
        tensors = compat.arguments(self._function, compiled.function, args, kwargs)
        results = compat.packer(compiled.function)(compiled.run(tensors))
        # What TensorFlow made of the arguments, it would make of them again.
        plain = not kwargs and len(args) == len(tensors) and all(map(is_, args, tensors))
        self._shortcut = compiled.shortcut if plain else None
        return results

    def is_compiled(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments compiles nothing."""
        return _key(args, kwargs) in self._known

    def compiled(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Compiled:
        """What a call with these arguments runs, compiled at the first of its kind."""
        key = _key(args, kwargs)
        if key is not None and key in self._known:
            return self._known[key]
        concrete = self._function.get_concrete_function(*args, **kwargs)
        compiled = self._compiled.get(id(concrete))
        if compiled is None:
            compiled = self._compiled[id(concrete)] = Compiled(concrete, self._settings)
        if key is not None:
            self._known[key] = compiled
        return compiled

    def _wants_gradients(
        self, compiled: Compiled, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> bool:
        tensors = compat.arguments(self._function, compiled.function, args, kwargs)
        return compat.should_record([*tensors, *compiled.function.captured_inputs])


def polymorphic(fn: Callable[..., Any], input_signature: Sequence[Any] | None = None) -> Any:
    """The `tf.function` of anything that `function` takes."""
    if isinstance(fn, Function):
        return fn._function
    if isinstance(fn, compat.PolymorphicFunction) and input_signature is None:
        return fn
    if isinstance(fn, compat.ConcreteFunction):
        # It has one signature; what is called here takes any structure of arguments.
        return tf.function(functools.partial(_call, fn), input_signature, autograph=False)
    return tf.function(fn, input_signature)


def _call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)


def _key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What tells calls of one trace from those of others; None where that is hard to say."""
    try:
        if kwargs:
            found = (tuple(map(_leaf, args)), tuple(sorted(kwargs)), *map(_leaf, kwargs.values()))
        else:
            found = tuple(map(_leaf, args))
        hash(found)
    except TypeError:
        return None
    return found


def _leaf(value: Any) -> Any:
    if type(value) is compat.EagerTensor:
        return value.dtype, value._shape_tuple()
    if value is None or isinstance(value, bool | int | float | str):
        return type(value), value
    if isinstance(value, tuple | list):
        return (type(value), *map(_leaf, value))
    if isinstance(value, dict):
        return (dict, *((name, _leaf(item)) for name, item in value.items()))
    raise TypeError
